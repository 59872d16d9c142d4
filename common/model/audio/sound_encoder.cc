#include "common/model/audio/sound_encoder.h"

#include <utility>

#include "common/model/audio/audio_tower.h"
#include "common/model/audio/frame_embedder.h"
#include "common/model/gemma4/tower.h"

namespace outrider {
namespace {

const char* mark(const AudioConfig& config) { return config.without_tower ? FrameEmbedder::kMark : AudioTower::kMark; }

}  // namespace

Result<std::unique_ptr<SoundEncoder>> SoundEncoder::load(const ModelFiles& files, WeightType type) {
  ASSIGN_OR_RETURN(const AudioConfig config, load_audio_config(files));
  ASSIGN_OR_RETURN(std::shared_ptr<const WeightSource> weights, open_tower_weights(files, type, "audio", mark(config)));
  return load(config, std::move(weights));
}

Result<std::unique_ptr<SoundEncoder>> SoundEncoder::load(const AudioConfig& config,
                                                         std::shared_ptr<const WeightSource> weights) {
  return config.without_tower ? FrameEmbedder::load(config, std::move(weights))
                              : AudioTower::load(config, std::move(weights));
}

bool SoundEncoder::is_in(const AudioConfig& config, const WeightSource& weights) { return weights.has(mark(config)); }

}  // namespace outrider
