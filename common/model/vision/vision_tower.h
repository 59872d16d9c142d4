#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/compute/kernels/ops.h"
#include "common/model/gemma4/clipped_linear.h"
#include "common/model/gemma4/tower.h"
#include "common/model/vision/picture_encoder.h"

namespace outrider {

/// The vision tower of Gemma 4 with its projection to the text model's width (gemma4.md 8). It makes one soft token of
/// nine patches. One picture is 630 to 10,080 rows, which fill every matrix product.
class VisionTower : public PictureEncoder {
 public:
  /// A tensor that every model with this tower has.
  static constexpr const char* kMark = "model.vision_tower.patch_embedder.input_proj.weight";

  static Result<std::unique_ptr<PictureEncoder>> load(const VisionConfig& config,
                                                      std::shared_ptr<const WeightSource> weights);

  /// @param between_steps  called several times in every layer
  Matrix<const float> encode(const Patches& picture, const Trace& trace = {},
                             const std::function<void()>* between_steps = nullptr) override;
  const std::string& gemm_implementation() const override { return layers_.front().down.linear().implementation(); }

 private:
  struct Layer {
    std::vector<float> input_norm, post_attention_norm, pre_feedforward_norm, post_feedforward_norm, q_norm, k_norm;
    ClippedLinear q, k, v, o, gate, up, down;

    static Result<Layer> load(const WeightReader& weights, const VisionConfig& config);
  };
  /// Scratch memory of one encode, by purpose.
  struct Scratch {
    Buffer x, normed, clipped, q, k, v, attention, gate, up, pooled, soft;
    AlignedArray<Bf16> kv;  ///< keys, then values
  };

  using PictureEncoder::PictureEncoder;
  /// x [patches, hidden_size]
  void embed(const Patches& picture, Matrix<float> x);
  void forward(const Layer& layer, const Patches& picture, Matrix<float> x);
  void attention(const Layer& layer, const Patches& picture, Matrix<float> h);
  void mlp(const Layer& layer, Matrix<float> h);
  /// Rotates every head by a patch's column and row.
  void rotate(Matrix<float> x, const Patches& picture) const;
  /// Returns keys and values for attend(): as floats, or rounded to bf16 like a text model's cache.
  KvView keys_and_values(Matrix<const float> k, Matrix<const float> v);
  Matrix<float> pool(const Patches& picture, Matrix<const float> x);

  WeightType type_ = WeightType::kF32;
  Linear input_projection_, embedding_projection_;
  RowTable positions_;  ///< [2 * position_embedding_size, hidden_size]: of columns, then of rows
  std::vector<Layer> layers_;
  std::vector<float> std_bias_, std_scale_;  ///< empty unless standardize
  std::vector<RopeAngles> angles_;           ///< of the coordinates seen so far
  Scratch scratch_;
  Steps steps_;
};

}  // namespace outrider
