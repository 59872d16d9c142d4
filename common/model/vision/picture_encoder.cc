#include "common/model/vision/picture_encoder.h"

#include <algorithm>
#include <utility>

#include "common/model/gemma4/tower.h"
#include "common/model/vision/patch_embedder.h"
#include "common/model/vision/vision_tower.h"

namespace outrider {
namespace {

const char* mark(const VisionConfig& config) {
  return config.without_tower ? PatchEmbedder::kMark : VisionTower::kMark;
}

}  // namespace

Result<std::unique_ptr<PictureEncoder>> PictureEncoder::load(const ModelFiles& files, WeightType type) {
  ASSIGN_OR_RETURN(const VisionConfig config, load_vision_config(files));
  ASSIGN_OR_RETURN(std::shared_ptr<const WeightSource> weights,
                   open_tower_weights(files, type, "vision", mark(config)));
  return load(config, std::move(weights));
}

Result<std::unique_ptr<PictureEncoder>> PictureEncoder::load(const VisionConfig& config,
                                                             std::shared_ptr<const WeightSource> weights) {
  return config.without_tower ? PatchEmbedder::load(config, std::move(weights))
                              : VisionTower::load(config, std::move(weights));
}

bool PictureEncoder::is_in(const VisionConfig& config, const WeightSource& weights) {
  return weights.has(mark(config));
}

void PictureEncoder::check_fits(const Patches& picture) const {
  const std::int64_t pool = config_.pooling_kernel_size, count = picture.rows * picture.columns;
  CHECK(count > 0 && picture.rows % pool == 0 && picture.columns % pool == 0 &&
            std::max(picture.rows, picture.columns) <= config_.position_embedding_size &&
            std::ssize(picture.values) == count * config_.patch_floats(),
        "{} x {} patches, {} floats", picture.rows, picture.columns, picture.values.size());
}

}  // namespace outrider
