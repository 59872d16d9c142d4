#pragma once

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <stop_token>
#include <string>
#include <vector>

#include "common/base/option.h"
#include "common/compute/kernels/linear.h"
#include "common/model/gemma4/draft_vocabulary.h"
#include "common/wire/transport/endpoint.h"
#include "common/wire/transport/worker.h"
#include "drafter-node/drafter_core.h"

namespace outrider {

class LentBackbone;

/// Default of DrafterOptions::threads: as many as an assistant's weights are worth, every core for a draft model.
inline constexpr int kThreadsOfFamily = -1;
/// Returns the number of threads that an assistant is worth, at most `cores`: one for each 3 MiB of the weights that a
/// draft step reads (docs/lab/drafter.md, "How many threads?").
inline int threads_worth(std::size_t step_bytes, int cores) {
  return static_cast<int>(std::clamp<std::size_t>(step_bytes / (3 << 20), 1, static_cast<std::size_t>(cores)));
}

struct DrafterOptions {
  std::filesystem::path assistant = {};
  /// The target's checkpoint, of which only config and embedding table are read. Empty beside a whole model.
  std::filesystem::path backbone = {};
  std::filesystem::path draft_model = {};  ///< with a backbone: a drafter that needs hidden rows; else a whole model
  LentBackbone* lent = nullptr;  ///< draft_model as a verifier of this process has loaded it, for its idle time
  WeightType weight_type = WeightType::kBf16;
  std::string join = {};  ///< the coordinator's address
  WorkerOptions worker = {};
  /// Of a forward pass; 0: every core.
  int threads = kThreadsOfFamily;
  std::int64_t draft_vocabulary = kDraftVocabularySize;  ///< tokens of a DraftVocabulary; 0: none
  std::string wire = "auto";                             ///< a WireForm
  std::int64_t memory_mib = 0;           ///< for K/V of its own, of all sessions; 0: a quarter of the free memory
  /// For measurements: longer forward passes, as added_time() takes them; a row is a sequence.
  std::vector<double> added_draft_us = {};
  DrafterConfig core = {};
};

template <class Visitor>
void declare_options(Visitor&& visit, DrafterOptions& options) {
  declare_options(visit, options.worker);
  visit("--draft-model", options.draft_model,
        {.help =
             "Draft with a whole model that has the target's tokens, such as a smaller Gemma 4, or with a drafter that "
             "was trained for the target (DSpark, DFlash, EAGLE-3), instead of an assistant: a Hugging Face directory, "
             "a .gguf file, a pack, a name on the hub, or a pair's directory, whose assistant drafts for its model",
         .of_cluster = true});
  visit("--threads", options.threads,
        {"Threads of the drafter's forward pass; 0: every core; -1: one for each 3 MiB of an assistant's "
         "weights, every core for --draft-model",
         {kThreadsOfFamily, kThreadsMax}});
  visit("--draft-vocabulary", options.draft_vocabulary,
        {.help = "Number of tokens that an assistant without ordered embeddings scores, the last used ones; while more "
                 "than 2 % of the target's tokens are others it scores all; 0: always all",
         .range = {0, 1 << 30},
         .of_cluster = true});
  visit("--wire", options.wire,
        {.help = "Rounding of K/V and hidden rows on their way to the drafter: exact, int8, int4; auto: int8 while the "
                 "link is slow",
         .of_cluster = true});
  visit("--memory", options.memory_mib,
        {"MiB for the K/V of all sessions with --draft-model; 0: a quarter of the memory that is free after loading",
         {0, 1 << 30}});
  visit("--exit-when-refused", options.core.link.exit_when_refused, kExitWhenRefused);
  visit("--added-draft-us", options.added_draft_us,
        {"For measurements of a slower host: microseconds added to forward passes for 1, 2, 4, 8, ... sequences; one "
         "value: to every pass",
         {0, 10'000'000}});
}

/// Loads the draft model, joins the coordinator and drafts until `stop` (then Ok), or until an error at the start or a
/// final refusal. A draft takes milliseconds, and so runs in the loop.
Result<void> run_drafter(TransportContext& context, const DrafterOptions& options, std::stop_token stop);

}  // namespace outrider
