#include "drafter-node/families.h"

#include "common/model/block_drafter/block_config.h"

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

}  // namespace outrider
