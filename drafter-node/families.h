#pragma once

#include <memory>
#include <string>

#include "common/base/result.h"
#include "drafter-node/draft_model.h"
#include "drafter-node/drafter_node.h"

namespace outrider {

/// A draft model, and what its node says of it.
struct LoadedDrafter {
  std::unique_ptr<DraftModel> model;
  PairFacts facts;
  std::string path;                 ///< for logs
  std::vector<TokenId> stop_ids;    ///< that end the model's own answers
  std::filesystem::path tokenizer;  ///< files with the one that grammars are made with
};

/// Of the family that the options name.
Result<LoadedDrafter> load_drafter(const DrafterOptions& options);

// One a family, in its folder.
Result<LoadedDrafter> load_assistant_drafter(const DrafterOptions& options);
Result<LoadedDrafter> load_block_drafter(const DrafterOptions& options);
Result<LoadedDrafter> load_whole_model_drafter(const DrafterOptions& options);

}  // namespace outrider
