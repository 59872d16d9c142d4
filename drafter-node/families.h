#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "common/model/gemma4/config.h"
#include "drafter-node/draft_model.h"
#include "drafter-node/drafter_node.h"

namespace outrider {

class Assistant;
class Backbone;
class BlockDrafter;
class Eagle3Drafter;
class WeightSource;

/// A draft model with its node's facts about it.
struct LoadedDrafter {
  std::unique_ptr<DraftModel> model;
  PairFacts facts;
  std::string path;                 ///< for logs
  std::vector<TokenId> stop_ids;    ///< end the model's own answers
  std::filesystem::path tokenizer;  ///< path of the tokenizer for grammars
  std::size_t step_bytes = 0;       ///< weights that a draft step reads, if they are few; 0: worth every core
};

/// Loads a drafter of the family that the options name.
Result<LoadedDrafter> load_drafter(const DrafterOptions& options);

// One per family, in its folder.
Result<LoadedDrafter> load_assistant_drafter(const DrafterOptions& options);
Result<LoadedDrafter> load_block_drafter(const DrafterOptions& options);
Result<LoadedDrafter> load_eagle3_drafter(const DrafterOptions& options);
Result<LoadedDrafter> load_whole_model_drafter(const DrafterOptions& options);

/// What a drafter that was trained for its target reads of the target.
struct DraftTarget {
  TextConfig config;
  std::shared_ptr<const WeightSource> weights;
  LoadedDrafter drafter;  ///< without its model and path
};
Result<DraftTarget> open_target(const DrafterOptions& options);

/// The target's assistant. It needs the target's rows: donor K/V of the sequence, and one hidden row per round.
/// @param kept  file that keeps the draft vocabulary, if the assistant has one, from one run to the next; empty: none
std::unique_ptr<DraftModel> make_draft_model(std::unique_ptr<Assistant> assistant, std::filesystem::path kept = {});

/// A block drafter: it needs hidden rows of the target and has K/V of its own. One pass serves a whole round, since the
/// scores of the block's positions are kept until the sequence or its last token changes; further steps add the Markov
/// head's part, if there is one. A path that is longer than the block has no scores.
std::unique_ptr<DraftModel> make_draft_model(std::unique_ptr<BlockDrafter> drafter);

/// An EAGLE-3 drafter: it needs hidden rows of the target with their tokens, and has K/V of its own for all rows but
/// the last, whose next token comes with the Draft. One pass takes a draft. A state has the K/V of its path, so that a
/// sequence has nothing of a rejected draft, and accepted positions get K/V from the target's rows.
std::unique_ptr<DraftModel> make_draft_model(std::unique_ptr<Eagle3Drafter> drafter);

/// Rows of one pass of a whole model, over several sequences; also how far a sequence's rings may be cut back.
inline constexpr std::int64_t kWholeModelRows = 128;
/// A whole model, usually a smaller one than the target, with K/V of its own. It needs token ids alone. The cache of
/// each sequence has the last step's tokens, committed or drafted: the next step keeps the common prefix, so that a
/// rejected draft costs only itself, and an accepted one is never computed again. With an assistant of its own it is a
/// cascade: the assistant guesses the model's next drafts, and one pass of the model over the guesses gives as many
/// drafts as guesses are right, and one more. The drafts have the same bits without it.
/// @param model  with at least kWholeModelRows rows
/// @param assistant  of `model`; null: none
std::unique_ptr<DraftModel> make_draft_model(std::shared_ptr<Backbone> model, std::unique_ptr<Assistant> assistant);

}  // namespace outrider
