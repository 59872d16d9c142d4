#pragma once

#include <memory>

#include "common/model/gemma4/assistant.h"
#include "drafter-node/draft_model.h"

namespace outrider {

/// The target's assistant. It needs the target's rows: donor K/V of the sequence, and one hidden row per round.
std::unique_ptr<DraftModel> make_draft_model(std::unique_ptr<Assistant> assistant);

}  // namespace outrider
