#include "common/model/tower.h"

#include <fmt/format.h>

namespace outrider {

Result<std::shared_ptr<const WeightSource>> open_tower_weights(const ModelFiles& files, WeightType type,
                                                               const std::string& kind, const std::string& mark) {
  ASSIGN_OR_RETURN(std::shared_ptr<const WeightSource> weights, open_weights(files, type));
  if (weights->has(mark)) return weights;
  return Error{Errc::kNotFound, fmt::format("{}: no {} tower among its weights, though its config.json has one: a pack "
                                            "of an earlier release, or an export without it",
                                            files.path().string(), kind)};
}

}  // namespace outrider
