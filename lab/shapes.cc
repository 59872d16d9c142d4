#include "lab/shapes.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include <nlohmann/json.hpp>

#include "common/base/names.h"

namespace outrider {
namespace {
using nlohmann::json;

// clang-format off
constexpr ModelShape kShapes[] = {
    {"e2b", "gemma4", 1536, 6144, true, 35, 5, 20, 8, 1, 1, false, 256, 512, 131072, {256, 2048, 4, true}},
    {"e4b", "gemma4", 2560, 10240, false, 42, 6, 18, 8, 2, 2, false, 256, 512, 131072, {256, 2048, 4, true}},
    {"12b", "gemma4_unified", 3840, 15360, false, 48, 6, 0, 16, 8, 1, true, 0, 1024, 262144, {1024, 8192, 16, false}},
    {"26b-a4b", "gemma4", 2816, 2112, false, 30, 6, 0, 16, 8, 2, true, 0, 1024, 262144, {1024, 8192, 16, false},
     {128, 8, 704}},
    {"31b", "gemma4", 5376, 21504, false, 60, 6, 0, 32, 16, 4, true, 0, 1024, 262144, {1024, 8192, 32, false}},
};
// clang-format on

/// Keys that both models' text configs have, in the published spelling.
json text_config(const ModelShape& v) {
  return {{"model_type", std::string(v.model_type) + "_text"},
          {"vocab_size", v.vocab_size},
          {"num_key_value_heads", v.num_key_value_heads},
          {"num_global_key_value_heads", v.attention_k_eq_v ? json(v.num_global_key_value_heads) : json()},
          {"attention_k_eq_v", v.attention_k_eq_v},
          {"head_dim", v.head_dim},
          {"global_head_dim", v.global_head_dim},
          {"sliding_window", v.sliding_window},
          {"max_position_embeddings", v.max_position_embeddings},
          {"hidden_activation", "gelu_pytorch_tanh"},
          {"rms_norm_eps", 1e-6},
          {"rope_parameters",
           {{"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 1e4}}},
            {"full_attention", {{"rope_type", "proportional"}, {"rope_theta", 1e6}, {"partial_rotary_factor", 0.25}}}}},
          {"tie_word_embeddings", true}};
}

json layer_types(int count, const auto& full) {
  json types = json::array();
  for (int i = 0; i < count; ++i) types.push_back(full(i) ? "full_attention" : "sliding_attention");
  return types;
}

}  // namespace

std::span<const ModelShape> published_shapes() { return kShapes; }

std::string published_names() { return names_of(kShapes, &ModelShape::name); }

Result<ModelShape> published_shape(const std::string& name) {
  for (const ModelShape& shape : kShapes) {
    if (name == shape.name) return shape;
  }
  return Error(Errc::kInvalidArgument, "shape '{}', wanted {}", name, published_names());
}

ModelShape reduced(ModelShape v, int layers, std::int64_t shrink) {
  v.num_kv_shared_layers =
      std::max(0, std::min(v.num_kv_shared_layers * layers / v.num_hidden_layers, layers - v.period));
  v.num_hidden_layers = layers;
  for (std::int64_t* width :
       {&v.hidden_size, &v.intermediate_size, &v.hidden_size_per_layer_input, &v.moe.moe_intermediate_size,
        &v.assistant.hidden_size, &v.assistant.intermediate_size, &v.vocab_size, &v.head_dim, &v.global_head_dim}) {
    *width /= shrink;
  }
  return v;
}

double typical_rms(std::int64_t in_features) { return 1 / std::sqrt(static_cast<double>(in_features)); }

double typical_mean(const std::string& name, std::int64_t size) {
  if (name.ends_with("q_norm.weight")) return typical_rms(size);  // scores are not scaled: a trained q_norm is small
  if (name.ends_with("put_min") || name.ends_with("put_max")) return name.ends_with("min") ? -30 : 30;  // never reached
  return name.ends_with("layer_scalar") ? 0.8 : 1;
}

std::string backbone_config_json(const ModelShape& v) {
  json text = text_config(v);
  text["hidden_size"] = v.hidden_size;
  text["intermediate_size"] = v.intermediate_size;
  text["num_hidden_layers"] = v.num_hidden_layers;
  text["num_attention_heads"] = v.num_attention_heads;
  text["num_kv_shared_layers"] = v.num_kv_shared_layers;
  text["use_double_wide_mlp"] = v.use_double_wide_mlp;
  text["layer_types"] = layer_types(v.num_hidden_layers, [&](int i) { return v.is_full(i); });
  text["final_logit_softcapping"] = 30.0;
  text["use_bidirectional_attention"] = v.hidden_size_per_layer_input > 0 ? json() : json("vision");
  if (std::string(v.model_type) == "gemma4") {  // the unified type has none of these keys
    text["hidden_size_per_layer_input"] = v.hidden_size_per_layer_input;
    text["vocab_size_per_layer_input"] = v.vocab_size;
    text["enable_moe_block"] = v.moe.num_experts > 0;
    text["num_experts"] = v.moe.num_experts > 0 ? json(v.moe.num_experts) : json();
    text["top_k_experts"] = v.moe.num_experts > 0 ? json(v.moe.top_k_experts) : json();
    text["moe_intermediate_size"] = v.moe.num_experts > 0 ? json(v.moe.moe_intermediate_size) : json();
  }
  const json config = {{"model_type", v.model_type},
                       {"dtype", "bfloat16"},
                       {"tie_word_embeddings", true},
                       {"text_config", std::move(text)}};
  return config.dump(2) + "\n";
}

std::string assistant_config_json(const ModelShape& v) {
  json text = text_config(v);
  text["hidden_size"] = v.assistant.hidden_size;
  text["intermediate_size"] = v.assistant.intermediate_size;
  text["num_hidden_layers"] = kAssistantLayers;
  text["num_attention_heads"] = v.assistant.num_attention_heads;
  text["num_kv_shared_layers"] = kAssistantLayers;
  text["layer_types"] = layer_types(kAssistantLayers, [](int j) { return j == kAssistantLayers - 1; });
  text["final_logit_softcapping"] = json();
  text["hidden_size_per_layer_input"] = 0;
  text["vocab_size_per_layer_input"] = 0;
  const json config = {{"model_type", std::string(v.model_type) + "_assistant"},
                       {"dtype", "bfloat16"},
                       {"backbone_hidden_size", v.hidden_size},
                       {"use_ordered_embeddings", v.assistant.use_ordered_embeddings},
                       {"num_centroids", kNumCentroids},
                       {"centroid_intermediate_top_k", kCentroidTopK},
                       {"tie_word_embeddings", true},
                       {"text_config", std::move(text)}};
  return config.dump(2) + "\n";
}

}  // namespace outrider
