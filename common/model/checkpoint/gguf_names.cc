#include "common/model/checkpoint/gguf_names.h"

#include <algorithm>

#include <fmt/format.h>

#include "common/model/checkpoint/safetensors.h"
#include "common/os/files.h"

namespace outrider {
namespace {

// Tensors of the whole model.
constexpr NamePair kModelNames[] = {
    {"token_embd.weight", "model.embed_tokens.weight"},
    {"output_norm.weight", "model.norm.weight"},
    {"output.weight", "lm_head.weight"},
    {"per_layer_token_embd.weight", "model.embed_tokens_per_layer.weight"},
    {"per_layer_model_proj.weight", "model.per_layer_model_projection.weight"},
    {"per_layer_proj_norm.weight", "model.per_layer_projection_norm.weight"},
    {"nextn.pre_projection.weight", "pre_projection.weight"},
    {"nextn.post_projection.weight", "post_projection.weight"},
    {"masked_embd_centroids.weight", "masked_embedding.centroids.weight"},
    {"masked_embd_ordering", "masked_embedding.token_ordering"},
    // AtomicChat's converter
    {"mtp.pre_projection.weight", "pre_projection.weight"},
    {"mtp.post_projection.weight", "post_projection.weight"},
    {"mtp.centroids.weight", "masked_embedding.centroids.weight"},
    {"mtp.token_ordering.weight", "masked_embedding.token_ordering"},
    // ik_llama.cpp's, whose mtp_token_ordering is another table: each token's centroid
    {"mtp_pre_proj.weight", "pre_projection.weight"},
    {"mtp_post_proj.weight", "post_projection.weight"},
};

// Tensors of layer N, after "blk.N." and "model.layers.N.".
constexpr NamePair kLayerNames[] = {
    {"attn_norm.weight", "input_layernorm.weight"},
    {"post_attention_norm.weight", "post_attention_layernorm.weight"},
    {"ffn_norm.weight", "pre_feedforward_layernorm.weight"},
    {"post_ffw_norm.weight", "post_feedforward_layernorm.weight"},
    {"layer_output_scale.weight", "layer_scalar"},
    {"attn_q.weight", "self_attn.q_proj.weight"},
    {"attn_k.weight", "self_attn.k_proj.weight"},
    {"attn_v.weight", "self_attn.v_proj.weight"},
    {"attn_output.weight", "self_attn.o_proj.weight"},
    {"attn_q_norm.weight", "self_attn.q_norm.weight"},
    {"attn_k_norm.weight", "self_attn.k_norm.weight"},
    {"ffn_gate.weight", "mlp.gate_proj.weight"},
    {"ffn_up.weight", "mlp.up_proj.weight"},
    {"ffn_down.weight", "mlp.down_proj.weight"},
    {"inp_gate.weight", "per_layer_input_gate.weight"},
    {"proj.weight", "per_layer_projection.weight"},
    {"post_norm.weight", "post_per_layer_input_norm.weight"},
    {"ffn_gate_inp.weight", "router.proj.weight"},
    {"ffn_gate_inp.scale", "router.scale"},
    {"ffn_down_exps.scale", "router.per_expert_scale"},
    {"ffn_gate_up_exps.weight", "experts.gate_up_proj"},
    {"ffn_gate_exps.weight", "experts.gate_proj"},
    {"ffn_up_exps.weight", "experts.up_proj"},
    {"ffn_down_exps.weight", "experts.down_proj"},
    {"pre_ffw_norm_2.weight", "pre_feedforward_layernorm_2.weight"},
    {"post_ffw_norm_1.weight", "post_feedforward_layernorm_1.weight"},
    {"post_ffw_norm_2.weight", "post_feedforward_layernorm_2.weight"},
};

constexpr std::string_view kGgufLayer = "blk.", kHuggingFaceLayer = "model.layers.";
using NameMember = std::string_view NamePair::*;

/// Translates a name by the tables, from one column to the other.
std::optional<std::string> translate(std::string_view name, NameMember from, NameMember to, std::string_view layer_from,
                                     std::string_view layer_to) {
  if (!name.starts_with(layer_from)) {
    const auto* const pair = std::ranges::find(kModelNames, name, from);
    return pair == std::end(kModelNames) ? std::nullopt : std::optional(std::string(pair->*to));
  }
  const std::string_view rest = name.substr(layer_from.size());
  const std::size_t digits = std::min(rest.find_first_not_of("0123456789"), rest.size());
  if (digits == 0 || digits == rest.size() || rest[digits] != '.') return std::nullopt;
  const auto* const pair = std::ranges::find(kLayerNames, rest.substr(digits + 1), from);
  if (pair == std::end(kLayerNames)) return std::nullopt;
  return fmt::format("{}{}.{}", layer_to, rest.substr(0, digits), pair->*to);
}

}  // namespace

std::optional<std::string> hugging_face_name(std::string_view gguf_name) {
  return translate(gguf_name, &NamePair::gguf, &NamePair::hugging_face, kGgufLayer, kHuggingFaceLayer);
}

std::optional<std::string> gguf_name(std::string_view hugging_face_name) {
  return translate(hugging_face_name, &NamePair::hugging_face, &NamePair::gguf, kHuggingFaceLayer, kGgufLayer);
}

Result<std::vector<TensorEntry>> hugging_face_tensors(const GgufModel& model) {
  static constexpr float kOne = 1;
  constexpr std::string_view kNorm = ".attn_norm.weight";  // every layer has this tensor
  std::vector<TensorEntry> tensors;
  for (const TensorEntry& tensor : model.tensors) {
    TensorEntry& renamed = tensors.emplace_back(tensor);
    renamed.name = hugging_face_name(tensor.name).value_or(tensor.name);
    if (!tensor.name.starts_with(kGgufLayer) || !tensor.name.ends_with(kNorm)) continue;
    const std::string scale = tensor.name.substr(0, tensor.name.size() - kNorm.size()) + ".layer_output_scale.weight";
    const std::optional<std::string> layer_scalar = hugging_face_name(scale);
    if (layer_scalar && model.find(scale) == nullptr) {
      tensors.push_back({*layer_scalar, DType::kF32, {1}, std::as_bytes(std::span(&kOne, 1)), tensor.file});
    }
  }
  if (const TensorEntry* repeated = sort_for_repeated(tensors, &TensorEntry::name))
    return file_error(Errc::kMalformed, repeated->file, "two tensors are called {}", quote(repeated->name));
  return tensors;
}

}  // namespace outrider
