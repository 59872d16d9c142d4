#pragma once

#include <memory>

#include "common/model/block_drafter/eagle3_drafter.h"
#include "drafter-node/draft_model.h"

namespace outrider {

/// An EAGLE-3 drafter: it needs hidden rows of the target with their tokens, and has K/V of its own for all rows but
/// the last, whose next token comes with the Draft. One pass takes a draft. A state has the K/V of its path, so that
/// nothing of a rejected draft is in a sequence, and accepted positions get theirs from the target's rows.
std::unique_ptr<DraftModel> make_draft_model(std::unique_ptr<Eagle3Drafter> drafter);

}  // namespace outrider
