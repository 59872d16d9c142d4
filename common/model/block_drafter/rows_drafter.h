#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/model/block_drafter/block_config.h"
#include "common/model/gemma4/embedding.h"
#include "common/model/gemma4/kv_cache.h"
#include "common/model/gemma4/weights.h"
#include "common/model/gemma4/workspace.h"

namespace outrider {

/// What drafters with hidden rows have in common: a few decoder layers like Qwen3's, Llama's or Gemma's behind `fc`,
/// and a vocabulary, both often the target's in part.
class RowsDrafter {
 public:
  /// Most rows of a pass.
  static constexpr std::int64_t kRowsMax = 128;

  /// Makes the K/V cache of a sequence: computed from the target's rows, all positions in every layer.
  KvCache make_cache() const;
  /// The tokens of the scores' columns; empty: the whole vocabulary in order.
  std::span<const TokenId> vocabulary() const { return vocabulary_; }
  const BlockConfig& config() const { return config_; }

 protected:
  struct Layer {
    std::vector<float> input_norm, mlp_input_norm, q_norm, k_norm;
    std::vector<float> attention_output_norm, mlp_output_norm;  ///< Gemma's
    float scalar = 1;
    Linear q, kv, o, gate_up, down;  ///< kv: k, then v unless k_eq_v
  };
  RowsDrafter() = default;
  /// Loads all but what is one family's own. @pre config_ is set
  /// @param files, source  the drafter's @param backbone_weights  for an embedding table and a head that it lacks
  Result<void> load_shared(const ModelFiles& files, const WeightSource& source, const WeightSource& backbone_weights);
  /// Elements of a position's K, and of its V, in a layer.
  std::int64_t kv_size() const { return config_.num_key_value_heads * config_.head_dim; }
  /// Returns layer l's K and V of rows x, normed and rotated: [rows, 2 * kv_size()], valid until the next call.
  Matrix<float> keys_and_values(std::size_t l, Matrix<const float> x, std::span<const Position> positions);
  /// Returns layer l's queries of rows x, normed, rotated and scaled, valid until the next call.
  Matrix<float> queries(std::size_t l, Matrix<const float> x, std::span<const Position> positions);
  /// Computes the rest of a layer on its residual: x += o(mixed); x += down(activation(gate(h)) * up(h)), with h the
  /// normed x. @param mixed  attention's output
  void finish_layer(const Layer& layer, Matrix<const float> mixed, Matrix<float> x);
  /// Writes the head's scores of normed rows.
  void score(Matrix<const float> normed, Matrix<float> scores);

  BlockConfig config_{};
  std::optional<Embedding> embedding_;
  Linear fc_, head_;
  std::vector<float> norm_;
  std::vector<Layer> layers_;
  Workspace workspace_;

 private:
  Result<void> load_layers(const WeightReader& weights);
  /// Loads the embedding and the head. @param files  the drafter's
  Result<void> load_vocabulary(const ModelFiles& files, const WeightReader& weights, const WeightSource& backbone);
  void norm_and_rotate(Matrix<float> heads, std::span<const float> norm, std::span<const Position> positions);

  DType kv_dtype_ = DType::kF32;
  std::vector<float> inv_freq_;
  std::vector<TokenId> vocabulary_;
  struct {
    Buffer q, kv;
  } scratch_;
};

}  // namespace outrider
