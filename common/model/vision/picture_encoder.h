#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/model/gemma4/trace.h"
#include "common/model/gemma4/weights.h"
#include "common/model/gemma4/workspace.h"
#include "common/model/vision/patches.h"
#include "common/model/vision/vision_config.h"

namespace outrider {

/// Encodes a picture into soft tokens: a VisionTower, or 12B's PatchEmbedder, loaded and packed. One encode at a time:
/// the result depends neither on other pictures nor, as the kernels guarantee, on the number of threads.
class PictureEncoder {
 public:
  /// Loads the encoder that the config names. @return errors as load_vision_config() and open_tower_weights()
  static Result<std::unique_ptr<PictureEncoder>> load(const ModelFiles& files, WeightType type);
  static Result<std::unique_ptr<PictureEncoder>> load(const VisionConfig& config,
                                                      std::shared_ptr<const WeightSource> weights);
  /// Returns true if the encoder is among these weights.
  static bool is_in(const VisionConfig& config, const WeightSource& weights);

  virtual ~PictureEncoder() = default;

  /// @param between_steps  called several times, so that a caller's loop can run during a large picture
  /// @return [soft tokens, text_hidden_size], row by row of the picture: rows of the text model's input, to which the
  /// embedding's scale is not applied. Valid until the next encode
  /// @pre the grid is not empty, fits pooling_kernel_size, and is at most position_embedding_size wide and high
  virtual Matrix<const float> encode(const Patches& picture, const Trace& trace = {},
                                     const std::function<void()>* between_steps = nullptr) = 0;

  const VisionConfig& config() const { return config_; }
  /// Implementation of its largest matrix, for logs.
  virtual const std::string& gemm_implementation() const = 0;

 protected:
  explicit PictureEncoder(const VisionConfig& config) : config_(config) {}
  /// Aborts unless encode()'s precondition holds.
  void check_fits(const Patches& picture) const;

  VisionConfig config_;
};

}  // namespace outrider
