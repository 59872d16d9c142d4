#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/kernels/ops.h"
#include "common/model/buffers.h"
#include "common/model/clipped_linear.h"
#include "common/model/tower.h"
#include "common/model/trace.h"
#include "common/model/weights.h"
#include "common/model/workspace.h"
#include "common/vision/patches.h"
#include "common/vision/vision_config.h"

namespace outrider {

/// The vision tower of Gemma 4 and the projection into the text model's width (gemma4.md 8), loaded and packed.
/// Patches of a picture become a ninth as many soft tokens. One encode at a time.
///
/// Pictures are encoded one by one. One is 630 to 10,080 rows, which fill every matrix product; so what a picture
/// becomes cannot depend on others, nor, as the kernels promise, on the number of threads.
class VisionTower {
 public:
  static Result<std::unique_ptr<VisionTower>> load(const ModelFiles& files, WeightType type);
  static Result<std::unique_ptr<VisionTower>> load(const VisionConfig& config,
                                                   std::shared_ptr<const WeightSource> weights);

  /// Whether these are the weights of a model with a tower.
  static bool is_in(const WeightSource& weights);

  /// @param between_steps  called several times in every layer, so that a caller's loop stays awake in a large picture.
  /// @return [soft tokens, text_hidden_size], row by row of the picture: rows of the text model's input, which its
  ///   embedding's factor does not multiply. Valid until the next encode.
  /// @pre the grid is not empty, fits pooling_kernel_size, and is at most position_embedding_size wide and high.
  Matrix<const float> encode(const Patches& picture, const Trace& trace = {},
                             const std::function<void()>* between_steps = nullptr);

  const VisionConfig& config() const { return config_; }
  /// Bytes of weights that it holds.
  std::size_t weight_bytes() const;
  void report_buffers(const BufferSink& sink) const;
  /// Implementation of the largest matrix, for logs.
  const std::string& gemm_implementation() const { return layers_.front().down.linear().implementation(); }

 private:
  struct Layer {
    std::vector<float> input_norm, post_attention_norm, pre_feedforward_norm, post_feedforward_norm, q_norm, k_norm;
    ClippedLinear q, k, v, o, gate, up, down;

    static Result<Layer> load(const WeightReader& weights, const VisionConfig& config);
    template <typename Visit>
    void each_linear(Visit visit) const;
  };
  /// Of one encode, by purpose.
  struct Scratch {
    Buffer x, normed, clipped, q, k, v, attention, gate, up, pooled, soft;
    AlignedArray<Bf16> kv;  ///< keys, then values
  };

  VisionTower() = default;
  /// x [patches, hidden_size]
  void embed(const Patches& picture, Matrix<float> x);
  void forward(const Layer& layer, const Patches& picture, Matrix<float> x);
  void attention(const Layer& layer, const Patches& picture, Matrix<float> h);
  void mlp(const Layer& layer, Matrix<float> h);
  /// Turns every head by a patch's column and row.
  void rotate(Matrix<float> x, const Patches& picture) const;
  /// What attend() reads of keys and values: as floats, or rounded to bf16 as a text model's cache is.
  KvView keys_and_values(Matrix<const float> k, Matrix<const float> v);
  Matrix<float> pool(const Patches& picture, Matrix<const float> x);

  VisionConfig config_{};
  std::shared_ptr<const WeightSource> weights_;
  WeightType type_ = WeightType::kF32;
  Linear input_projection_, embedding_projection_;
  RowTable positions_;  ///< [2 * position_embedding_size, hidden_size]: of columns, then of rows
  std::vector<Layer> layers_;
  std::vector<float> std_bias_, std_scale_;  ///< empty unless standardize
  std::vector<RopeAngles> angles_;           ///< of the coordinates met so far
  Scratch scratch_;
  Steps steps_;
};

}  // namespace outrider
