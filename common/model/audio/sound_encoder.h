#pragma once

#include <functional>
#include <memory>
#include <span>

#include "common/model/audio/audio_config.h"
#include "common/model/audio/audio_features.h"
#include "common/model/gemma4/trace.h"
#include "common/model/gemma4/weights.h"
#include "common/model/gemma4/workspace.h"

namespace outrider {

/// Encodes a sound into soft tokens: an AudioTower, or 12B's FrameEmbedder, loaded and packed. One encode at a time;
/// the rows depend on the sound alone and, as the kernels guarantee, not on the number of threads.
class SoundEncoder {
 public:
  /// Loads the encoder that the config names. @return errors as load_audio_config() and open_tower_weights()
  static Result<std::unique_ptr<SoundEncoder>> load(const ModelFiles& files, WeightType type);
  static Result<std::unique_ptr<SoundEncoder>> load(const AudioConfig& config,
                                                    std::shared_ptr<const WeightSource> weights);
  /// Returns true if the encoder is among these weights.
  static bool is_in(const AudioConfig& config, const WeightSource& weights);

  virtual ~SoundEncoder() = default;

  /// @param samples  at least kSamplesMin
  /// @param between_steps  called several times, so that a caller's loop can run during a long sound
  /// @return [config().soft_tokens(), text_hidden_size]: rows of the text model's input, to which the embedding's scale
  /// is not applied. Valid until the next encode
  virtual Matrix<const float> encode(std::span<const float> samples, const Trace& trace = {},
                                     const std::function<void()>* between_steps = nullptr) = 0;

  const AudioConfig& config() const { return config_; }

 protected:
  explicit SoundEncoder(const AudioConfig& config) : config_(config) {}

  AudioConfig config_;
};

}  // namespace outrider
