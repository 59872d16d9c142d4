#pragma once

#include <memory>
#include <string>

#include "common/base/result.h"
#include "drafter-node/draft_model.h"
#include "drafter-node/drafter_node.h"

namespace outrider {

/// A draft model with its node's facts about it.
struct LoadedDrafter {
  std::unique_ptr<DraftModel> model;
  PairFacts facts;
  std::string path;                 ///< for logs
  std::vector<TokenId> stop_ids;    ///< end the model's own answers
  std::filesystem::path tokenizer;  ///< path of the tokenizer for grammars
};

/// Loads a drafter of the family that the options name.
Result<LoadedDrafter> load_drafter(const DrafterOptions& options);

// One per family, in its folder.
Result<LoadedDrafter> load_assistant_drafter(const DrafterOptions& options);
Result<LoadedDrafter> load_block_drafter(const DrafterOptions& options);
Result<LoadedDrafter> load_eagle3_drafter(const DrafterOptions& options);
Result<LoadedDrafter> load_whole_model_drafter(const DrafterOptions& options);

}  // namespace outrider
