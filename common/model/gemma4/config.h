#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"
#include "common/model/checkpoint/model_files.h"

namespace outrider {

enum class AttentionKind { kSliding, kFull };

/// One decoder layer, with both on-disk spellings and all defaults resolved (gemma4.md 1.1).
struct LayerConfig {
  AttentionKind kind;
  std::int64_t head_dim;
  std::int64_t num_key_value_heads;
  std::int64_t intermediate_size;  ///< dense MLP; already doubled if use_double_wide_mlp applies
  /// Index of the layer whose K/V this layer reads: its own if owns_kv, kDonorOutside in an assistant.
  int donor;
  bool owns_kv;
  bool k_eq_v;  ///< a full layer without v_proj: V is the raw k_proj output (attention_k_eq_v)
};

/// LayerConfig::donor of an assistant's layers, which read the backbone's K/V.
inline constexpr int kDonorOutside = -1;

/// Rotary embedding of one attention kind (gemma4.md 3.6).
struct RopeConfig {
  double rope_theta;
  bool proportional = false;           ///< rope_type proportional; else default: every pair rotates
  double partial_rotary_factor = 1.0;  ///< fraction of the pairs that rotate; 1 unless proportional
  double factor = 1.0;                 ///< divides the frequencies; 1 unless proportional
};

/// The text part of a config.json. Every value has been checked against bounds that keep sizes
/// computed from it well inside 64 bits.
struct TextConfig {
  std::string model_type;  ///< gemma4_text or gemma4_unified_text
  std::int64_t vocab_size, hidden_size;
  std::int64_t intermediate_size;  ///< before doubling: use LayerConfig's
  int num_hidden_layers;
  std::int64_t num_attention_heads;
  std::int64_t sliding_window;  ///< keys visible to a sliding layer, including the query's own
  float rms_norm_eps;
  float final_logit_softcapping;             ///< 0: none
  std::int64_t hidden_size_per_layer_input;  ///< 0: no per-layer embeddings
  std::int64_t vocab_size_per_layer_input;
  bool enable_moe_block;
  std::int64_t num_experts, top_k_experts, moe_intermediate_size;  ///< 0 unless enable_moe_block
  std::int64_t max_position_embeddings;
  RopeConfig sliding_rope, full_rope;

  std::vector<LayerConfig> layers;  ///< num_hidden_layers of them; the last is full
  int first_shared;                 ///< layers from here on own no K/V
  /// A warning each: metadata of a GGUF that its tensors contradict (the tensors count).
  std::vector<std::string> notes = {};

  const RopeConfig& rope(AttentionKind kind) const {
    return kind == AttentionKind::kSliding ? sliding_rope : full_rope;
  }
  /// Returns the last layer of this kind that owns its K/V, which shared layers and the assistant read. -1 if there is
  /// none.
  int last_owner(AttentionKind kind) const;
};

/// An assistant (MTP drafter): no layer owns K/V, so first_shared is 0 and every donor is outside.
struct AssistantConfig {
  TextConfig text;
  std::int64_t backbone_hidden_size;
  bool use_ordered_embeddings;
  std::int64_t num_centroids, centroid_intermediate_top_k;  ///< 0 unless use_ordered_embeddings
};

/// Reads the config of a backbone: multimodal (the keys are in text_config) or text only.
/// @return kNotFound or kIo for the file, kMalformed for an invalid value, kUnsupported for one that another
/// implementation might accept. The message names file, key, value seen and wanted.
Result<TextConfig> load_text_config(const ModelFiles& files);
/// Reads the config of an assistant; errors as above.
Result<AssistantConfig> load_assistant_config(const ModelFiles& files);

/// Parses the text of a config.json; `file` is its name in messages.
Result<TextConfig> parse_text_config(std::string_view json, std::string_view file);
Result<AssistantConfig> parse_assistant_config(std::string_view json, std::string_view file);

}  // namespace outrider
