#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/model/gemma4/tower.h"
#include "common/model/vision/picture_encoder.h"

namespace outrider {

/// 12B's replacement for a vision tower: two matrices turn the pixels of a patch into a soft token, independently of
/// other patches (gemma4.md 8.4).
class PatchEmbedder : public PictureEncoder {
 public:
  /// A tensor that every such model has.
  static constexpr const char* kMark = "model.vision_embedder.patch_dense.weight";

  static Result<std::unique_ptr<PictureEncoder>> load(const VisionConfig& config,
                                                      std::shared_ptr<const WeightSource> weights);

  Matrix<const float> encode(const Patches& picture, const Trace& trace,
                             const std::function<void()>* between_steps) override;
  const std::string& gemm_implementation() const override { return dense_.implementation(); }

 private:
  /// A LayerNorm with torch's epsilon, not the config's.
  struct Norm {
    std::vector<float> weight, bias;

    static Result<Norm> load(const WeightReader& weights, const std::string& name, std::int64_t width);
    void apply(Matrix<float> x) const { layer_norm(x, weight, bias, /*eps=*/1e-5F); }
  };

  using PictureEncoder::PictureEncoder;

  Norm patch_norm_, dense_norm_, position_norm_;
  Linear dense_, embedding_projection_;
  std::vector<float> dense_bias_;
  RowTable positions_;  ///< [2 * position_embedding_size, hidden_size]: alternating between columns and rows
  Buffer pixels_, x_, soft_;
  Steps steps_;
};

}  // namespace outrider
