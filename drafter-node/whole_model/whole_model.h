#pragma once

#include <memory>

#include "common/model/gemma4/assistant.h"
#include "common/model/gemma4/backbone.h"
#include "drafter-node/draft_model.h"

namespace outrider {

/// Rows of one pass of a whole model: those of several texts, and as many as a text's rings may be cut back by.
inline constexpr std::int64_t kWholeModelRows = 128;

/// A whole model, mostly a smaller one than the target, with K/V of its own. It needs token ids alone. Of each text its
/// cache holds what the last step wanted, committed or drafted: the next step keeps the prefix that both have, so that
/// a rejected draft costs nothing but itself, and one that was accepted is never computed again.
/// With an assistant of its own it is a cascade: the assistant guesses the model's next drafts, and one pass of the
/// model over the guesses gives as many drafts as guesses hold, and one more. The drafts are the same bits without it.
/// @param model  of at least kWholeModelRows rows
/// @param assistant  of `model`; null: none
std::unique_ptr<DraftModel> make_draft_model(std::unique_ptr<Backbone> model,
                                             std::unique_ptr<Assistant> assistant = nullptr);

}  // namespace outrider
