#pragma once

#include <memory>

#include "common/model/audio/sound_encoder.h"
#include "common/model/gemma4/tower.h"

namespace outrider {

/// 12B's replacement for an audio tower: every 40 ms of samples pass through a norm and a matrix (gemma4.md 9.4).
class FrameEmbedder : public SoundEncoder {
 public:
  /// A tensor that every such model has.
  static constexpr const char* kMark = "model.embed_audio.embedding_projection.weight";

  static Result<std::unique_ptr<SoundEncoder>> load(const AudioConfig& config,
                                                    std::shared_ptr<const WeightSource> weights);

  Matrix<const float> encode(std::span<const float> samples, const Trace& trace,
                             const std::function<void()>* between_steps) override;

 private:
  using SoundEncoder::SoundEncoder;

  Linear embedding_projection_;
  Buffer frames_, soft_;
  Steps steps_;
};

}  // namespace outrider
