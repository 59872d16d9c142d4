#pragma once

#include <memory>

#include "common/model/block_drafter/block_drafter.h"
#include "drafter-node/draft_model.h"

namespace outrider {

/// A block drafter: it needs hidden rows of the target and has K/V of its own. One pass serves a whole round, since the
/// scores of the block's positions are kept until the sequence or its last token changes; further steps add the Markov
/// head's part, if there is one. A path that is longer than the block has no scores.
std::unique_ptr<DraftModel> make_draft_model(std::unique_ptr<BlockDrafter> drafter);

}  // namespace outrider
