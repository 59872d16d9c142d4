#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "common/base/result.h"

namespace outrider {

/// The widths of a published Gemma 4 and its assistant (gemma4.md 1.2 and 1.3), by their config keys; 0 or
/// false where it has no such thing. What benchmarks and generated checkpoints are made of.
struct ModelShape {
  const char* name;
  const char* model_type;
  std::int64_t hidden_size, intermediate_size;
  bool use_double_wide_mlp;
  int num_hidden_layers, period;  ///< every period-th layer is full attention
  int num_kv_shared_layers;
  std::int64_t num_attention_heads, num_key_value_heads, num_global_key_value_heads;
  bool attention_k_eq_v;
  std::int64_t hidden_size_per_layer_input;
  std::int64_t sliding_window, max_position_embeddings;
  struct {
    std::int64_t hidden_size, intermediate_size, num_attention_heads;
    bool use_ordered_embeddings;
  } assistant;
  struct {
    std::int64_t num_experts, top_k_experts, moe_intermediate_size;
  } moe = {0, 0, 0};
  std::int64_t vocab_size = 262144, head_dim = 256, global_head_dim = 512;

  bool is_full(int layer) const { return layer % period == period - 1 || layer == num_hidden_layers - 1; }
};
inline constexpr std::int64_t kNumCentroids = 2048, kCentroidTopK = 32;
inline constexpr int kAssistantLayers = 4;

std::span<const ModelShape> published_shapes();
/// Their names, as a sentence lists them.
std::string published_names();
/// kInvalidArgument names those there are.
Result<ModelShape> published_shape(const std::string& name);

/// The first `layers` of the pattern, and as large a part of them shared, if the rest still has a full layer
/// for the shared ones to read; every width divided by `shrink`.
ModelShape reduced(ModelShape shape, int layers, std::int64_t shrink = 1);

/// Root mean square of random matrices, and mean of random vectors, that keep every activation near one, as in a
/// trained model.
double typical_rms(std::int64_t in_features);
double typical_mean(const std::string& name, std::int64_t size);

/// config.json of the two models, as published; load_text_config and load_assistant_config read them.
std::string backbone_config_json(const ModelShape& shape);
std::string assistant_config_json(const ModelShape& shape);

}  // namespace outrider
