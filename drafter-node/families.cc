#include "drafter-node/families.h"

#include <utility>

#include "common/model/block_drafter/block_config.h"
#include "common/model/checkpoint/model_files.h"
#include "common/model/checkpoint/pack.h"
#include "common/model/gemma4/generation_config.h"
#include "common/model/gemma4/weights.h"
#include "common/os/logging.h"
#include "common/pair/pair_files.h"

namespace outrider {
namespace {

struct Family {
  /// Returns true if the options name a model of it.
  bool (*is_named)(const DrafterOptions&);
  Result<LoadedDrafter> (*load)(const DrafterOptions&);
};

/// The first named one is loaded.
constexpr Family kFamilies[] = {
    {[](const DrafterOptions& options) { return !options.backbone.empty() && is_eagle3_drafter(options.draft_model); },
     load_eagle3_drafter},
    {[](const DrafterOptions& options) { return !options.draft_model.empty() && !options.backbone.empty(); },
     load_block_drafter},
    {[](const DrafterOptions& options) { return !options.draft_model.empty(); }, load_whole_model_drafter},
    {[](const DrafterOptions& options) { return !options.assistant.empty(); }, load_assistant_drafter},
};

}  // namespace

Result<LoadedDrafter> load_drafter(const DrafterOptions& options) {
  for (const Family& family : kFamilies)
    if (family.is_named(options)) return family.load(options);
  return Error{Errc::kInvalidArgument, "no draft model, wanted an assistant or --draft-model"};
}

Result<DraftTarget> open_target(const DrafterOptions& options) {
  if (options.worker.verify_weights) RETURN_IF_ERROR(verify_packs({options.backbone}));
  ASSIGN_OR_RETURN(const ModelFiles files, ModelFiles::open(options.backbone));
  DraftTarget target;
  ASSIGN_OR_RETURN(target.config, load_text_config(files));
  ASSIGN_OR_RETURN(target.weights, open_weights(files, options.weight_type));
  ASSIGN_OR_RETURN(GenerationConfig generation, load_generation_config(files));
  for (const std::string& note : target.config.notes)
    log_warn("event=metadata_overruled model={} note=\"{}\"", options.backbone.string(), note);
  target.drafter.facts = pair_facts(target.config, *target.weights);
  target.drafter.stop_ids = std::move(generation.eos_token_ids);
  target.drafter.tokenizer = options.backbone;
  return target;
}

}  // namespace outrider
