#pragma once

#include <memory>

#include "common/model/gemma4/assistant.h"
#include "common/model/gemma4/backbone.h"
#include "drafter-node/draft_model.h"

namespace outrider {

/// Rows of one pass of a whole model, over several sequences; also how far a sequence's rings may be cut back.
inline constexpr std::int64_t kWholeModelRows = 128;

/// A whole model, usually a smaller one than the target, with K/V of its own. It needs token ids alone. The cache of
/// each sequence has the last step's tokens, committed or drafted: the next step keeps the common prefix, so that a
/// rejected draft costs only itself, and an accepted one is never computed again. With an assistant of its own it is a
/// cascade: the assistant guesses the model's next drafts, and one pass of the model over the guesses gives as many
/// drafts as guesses are right, and one more. The drafts have the same bits without it.
/// @param model  with at least kWholeModelRows rows
/// @param assistant  of `model`; null: none
std::unique_ptr<DraftModel> make_draft_model(std::unique_ptr<Backbone> model,
                                             std::unique_ptr<Assistant> assistant = nullptr);

}  // namespace outrider
