#include "common/model/checkpoint/gguf_projector.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "common/model/checkpoint/gguf_names.h"
#include "common/os/files.h"

namespace outrider {
namespace {
namespace fs = std::filesystem;
using nlohmann::json;

// Names of llama.cpp's converter (gguf-py 0.19, Gemma4VisionAudioModel, Gemma4UnifiedVisionAudioModel).
constexpr const char *kPatches = "v.patch_embd.weight", *kPositions = "v.position_embd.weight",
                     *kProjection = "mm.input_projection.weight", *kQuery = "v.blk.0.attn_q.weight";
constexpr const char *kConvolutions[] = {"a.conv1d.0.weight", "a.conv1d.1.weight"}, *kRows = "a.pre_encode.out.weight",
                     *kAudioProjection = "mm.a.input_projection.weight", *kTaps = "a.blk.0.conv_dw.weight";
constexpr std::string_view kScale = "self_attn.per_dim_scale", kTapsPart = ".conv_dw.weight";

constexpr NamePair kNames[] = {
    {kPatches, "model.vision_tower.patch_embedder.input_proj.weight"},
    {kPositions, "model.vision_tower.patch_embedder.position_embedding_table"},
    {"v.std_bias", "model.vision_tower.std_bias"},
    {"v.std_scale", "model.vision_tower.std_scale"},
    {kProjection, "model.embed_vision.embedding_projection.weight"},
    {kConvolutions[0], "model.audio_tower.subsample_conv_projection.layer0.conv.weight"},
    {kConvolutions[1], "model.audio_tower.subsample_conv_projection.layer1.conv.weight"},
    {"a.conv1d.0.norm.weight", "model.audio_tower.subsample_conv_projection.layer0.norm.weight"},
    {"a.conv1d.1.norm.weight", "model.audio_tower.subsample_conv_projection.layer1.norm.weight"},
    {"a.input_projection.weight", "model.audio_tower.subsample_conv_projection.input_proj_linear.weight"},
    {kRows, "model.audio_tower.output_proj.weight"},
    {"a.pre_encode.out.bias", "model.audio_tower.output_proj.bias"},
    {kAudioProjection, "model.embed_audio.embedding_projection.weight"}};
// 12B's tensors; it has no towers (gemma4.md 8.4).
constexpr const char *kPatchNorm = "v.patch_norm.1.weight", *kPatchNormBias = "v.patch_norm.1.bias";
constexpr NamePair kUnifiedNames[] = {{kPatches, "model.vision_embedder.patch_dense.weight"},
                                      {"v.patch_embd.bias", "model.vision_embedder.patch_dense.bias"},
                                      {kPatchNorm, "model.vision_embedder.patch_ln1.weight"},
                                      {kPatchNormBias, "model.vision_embedder.patch_ln1.bias"},
                                      {"v.patch_norm.2.weight", "model.vision_embedder.patch_ln2.weight"},
                                      {"v.patch_norm.2.bias", "model.vision_embedder.patch_ln2.bias"},
                                      {"v.patch_norm.3.weight", "model.vision_embedder.pos_norm.weight"},
                                      {"v.patch_norm.3.bias", "model.vision_embedder.pos_norm.bias"},
                                      {kPositions, "model.vision_embedder.pos_embedding"},
                                      {kProjection, "model.embed_vision.embedding_projection.weight"},
                                      {kAudioProjection, "model.embed_audio.embedding_projection.weight"}};
// Tensors of layer N, after "v.blk.N." and "model.vision_tower.encoder.layers.N.".
constexpr NamePair kVisionParts[] = {
    {"ln1", "input_layernorm"},           {"attn_post_norm", "post_attention_layernorm"},
    {"ln2", "pre_feedforward_layernorm"}, {"ffn_post_norm", "post_feedforward_layernorm"},
    {"attn_q_norm", "self_attn.q_norm"},  {"attn_k_norm", "self_attn.k_norm"}};
// Each has a weight, and value bounds if the tower clips.
constexpr NamePair kVisionLinears[] = {{"attn_q", "self_attn.q_proj"}, {"attn_k", "self_attn.k_proj"},
                                       {"attn_v", "self_attn.v_proj"}, {"attn_out", "self_attn.o_proj"},
                                       {"ffn_gate", "mlp.gate_proj"},  {"ffn_up", "mlp.up_proj"},
                                       {"ffn_down", "mlp.down_proj"}};
// Tensors of layer N, after "a.blk.N." and "model.audio_tower.layers.N.". llama.cpp's names of the convolution's two
// norms are swapped.
constexpr NamePair kAudioParts[] = {{"attn_pre_norm", "norm_pre_attn"},
                                    {"attn_post_norm", "norm_post_attn"},
                                    {"ln2", "norm_out"},
                                    {"ffn_norm", "feed_forward1.pre_layer_norm"},
                                    {"ffn_post_norm", "feed_forward1.post_layer_norm"},
                                    {"ffn_norm_1", "feed_forward2.pre_layer_norm"},
                                    {"ffn_post_norm_1", "feed_forward2.post_layer_norm"},
                                    {"conv_norm", "lconv1d.pre_layer_norm"},
                                    {"norm_conv", "lconv1d.conv_norm"},
                                    {"conv_dw", "lconv1d.depthwise_conv1d"},
                                    {"attn_k_rel", "self_attn.relative_k_proj"},
                                    {"per_dim_scale", kScale}};
constexpr NamePair kAudioLinears[] = {{"attn_q", "self_attn.q_proj"},
                                      {"attn_k", "self_attn.k_proj"},
                                      {"attn_v", "self_attn.v_proj"},
                                      {"attn_out", "self_attn.post"},
                                      {"ffn_up", "feed_forward1.ffw_layer_1"},
                                      {"ffn_down", "feed_forward1.ffw_layer_2"},
                                      {"ffn_up_1", "feed_forward2.ffw_layer_1"},
                                      {"ffn_down_1", "feed_forward2.ffw_layer_2"},
                                      {"conv_pw1", "lconv1d.linear_start"},
                                      {"conv_pw2", "lconv1d.linear_end"}};
struct LayerNames {
  std::string_view gguf, hugging_face;
  std::span<const NamePair> parts, linears;
};
constexpr LayerNames kLayers[] = {{"v.blk.", "model.vision_tower.encoder.layers.", kVisionParts, kVisionLinears},
                                  {"a.blk.", "model.audio_tower.layers.", kAudioParts, kAudioLinears}};

const NamePair* find_name(std::span<const NamePair> names, std::string_view gguf) {
  const auto found = std::ranges::find(names, gguf, &NamePair::gguf);
  return found == names.end() ? nullptr : &*found;
}

/// @param unified  true for 12B
std::optional<std::string> hugging_face_name_of(std::string_view name, bool unified) {
  if (const NamePair* known = find_name(unified ? std::span<const NamePair>(kUnifiedNames) : kNames, name))
    return std::string(known->hugging_face);
  const auto layers = std::ranges::find_if(kLayers, [&](const LayerNames& of) { return name.starts_with(of.gguf); });
  if (layers == std::end(kLayers)) return std::nullopt;
  const std::string_view rest = name.substr(layers->gguf.size());
  const std::size_t digits = std::min(rest.find_first_not_of("0123456789"), rest.size());
  const std::size_t dot = rest.rfind('.');
  if (digits == 0 || dot == rest.npos || dot <= digits || rest[digits] != '.') return std::nullopt;
  const std::string layer = fmt::format("{}{}.", layers->hugging_face, rest.substr(0, digits));
  const std::string_view part = rest.substr(digits + 1, dot - digits - 1), what = rest.substr(dot);
  if (const NamePair* known = find_name(layers->parts, part))
    return fmt::format("{}{}{}", layer, known->hugging_face, known->hugging_face == kScale ? "" : what);
  const NamePair* const linear = find_name(layers->linears, part);
  if (linear == nullptr) return std::nullopt;
  return fmt::format("{}{}{}{}", layer, linear->hugging_face, what == ".weight" ? ".linear" : "", what);
}

/// Returns the tensor, which must have `axes` axes.
Result<const TensorEntry*> need_tensor(const GgufModel& projector, const char* name, std::size_t axes) {
  const TensorEntry* const found = projector.find(name);
  if (found == nullptr) return file_error(Errc::kNotFound, projector.file, "tensor {} is missing", name);
  if (found->shape.size() == axes) return found;
  return file_error(Errc::kMismatch, projector.file, "tensor {} has shape [{}], wanted {} axes", name,
                    fmt::join(found->shape, ", "), axes);
}

/// Returns the id of a token of the text model; none if it is missing.
std::optional<std::int64_t> token_of(const GgufModel& text, std::string_view token) {
  const auto tokens = text.metadata.find<std::vector<std::string_view>>("tokenizer.ggml.tokens");
  if (!tokens || !*tokens) return std::nullopt;
  const auto at = std::ranges::find(**tokens, token);
  return at == (*tokens)->end() ? std::nullopt : std::optional<std::int64_t>(at - (*tokens)->begin());
}

/// Returns the kind of vision projector.
Result<std::optional<std::string_view>> kind_of(const GgufModel& projector) {
  ASSIGN_OR_RETURN(const auto kind, projector.metadata.find<std::string_view>("clip.vision.projector_type"));
  if (kind) return kind;
  return projector.metadata.find<std::string_view>("clip.projector_type");
}
constexpr std::string_view kTower = "gemma4v", kUnified = "gemma4uv";
bool is_unified(const GgufModel& projector) {
  const auto kind = kind_of(projector);
  return kind && *kind == kUnified;
}

/// Converts patch_embd [hidden, colour, row, column] to Hugging Face's [hidden, row, column, colour]; also 12B's first
/// norm, with `hidden` 1.
std::vector<std::byte> colours_last(const TensorEntry& patches, std::size_t hidden) {
  const std::size_t pixels = static_cast<std::size_t>(patches.element_count()) / (3 * hidden);
  const std::size_t size = patches.bytes.size() / (hidden * 3 * pixels);
  std::vector<std::byte> turned(patches.bytes.size());
  for (std::size_t h = 0; h < hidden; ++h) {
    for (std::size_t pixel = 0; pixel < pixels; ++pixel) {
      for (std::size_t colour = 0; colour < 3; ++colour)
        std::memcpy(turned.data() + ((h * pixels + pixel) * 3 + colour) * size,
                    patches.bytes.data() + ((h * 3 + colour) * pixels + pixel) * size, size);
    }
  }
  return turned;
}

/// Converts 12B's positions [column or row, coordinate, hidden] to Hugging Face's [coordinate, column or row, hidden].
std::vector<std::byte> coordinates_first(const TensorEntry& positions) {
  const auto count = static_cast<std::size_t>(positions.shape[1]);
  const std::size_t size = positions.bytes.size() / (2 * count);
  std::vector<std::byte> turned(positions.bytes.size());
  for (std::size_t axis = 0; axis < 2; ++axis) {
    for (std::size_t i = 0; i < count; ++i)
      std::memcpy(turned.data() + (2 * i + axis) * size, positions.bytes.data() + (axis * count + i) * size, size);
  }
  return turned;
}

/// Inverts the softplus that a GGUF applies to these numbers. @pre they are F32
std::vector<std::byte> before_softplus(const TensorEntry& scale) {
  std::vector<float> values(static_cast<std::size_t>(scale.element_count()));
  std::memcpy(values.data(), scale.bytes.data(), values.size() * sizeof(float));
  for (float& value : values) value = static_cast<float>(std::log(std::expm1(static_cast<double>(value))));
  std::vector<std::byte> bytes(values.size() * sizeof(float));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

/// Checks that soft tokens have the text model's width. @param whose  "its", for a message
Result<void> check_width(const GgufModel& projector, const TensorEntry& projection, const json& width,
                         std::string_view whose) {
  if (width == projection.shape[0]) return {};
  return file_error(Errc::kMismatch, projector.file,
                    "{} soft tokens have {} numbers, wanted {}, as the text model's rows", whose, projection.shape[0],
                    width.dump());
}

/// Returns the audio tower's config as in config.json; null if there is none, or one of another kind.
Result<json> audio_config(const GgufModel& projector, const json& text_width) {
  ASSIGN_OR_RETURN(const auto kind, projector.metadata.find<std::string_view>("clip.audio.projector_type"));
  if (kind == "gemma4ua" && is_unified(projector)) {
    ASSIGN_OR_RETURN(const TensorEntry* projection, need_tensor(projector, kAudioProjection, 2));
    RETURN_IF_ERROR(check_width(projector, *projection, text_width, "its sounds'"));
    return json{{"model_type", "gemma4_unified_audio"}, {"audio_embed_dim", projection->shape[1]}};
  }
  if (kind != "gemma4a") return json();
  json audio = {{"model_type", "gemma4_audio"}};
  for (const auto& [to, from] : {std::pair("hidden_size", "embedding_length"),
                                 {"num_hidden_layers", "block_count"},
                                 {"num_attention_heads", "attention.head_count"}}) {
    ASSIGN_OR_RETURN(audio[to], projector.metadata.get<std::int64_t>(fmt::format("clip.audio.{}", from)));
  }
  // The file's epsilon is a constant of the converter, not the model's.
  ASSIGN_OR_RETURN(const TensorEntry* first, need_tensor(projector, kConvolutions[0], 4));
  ASSIGN_OR_RETURN(const TensorEntry* second, need_tensor(projector, kConvolutions[1], 4));
  ASSIGN_OR_RETURN(const TensorEntry* taps, need_tensor(projector, kTaps, 2));
  ASSIGN_OR_RETURN(const TensorEntry* rows, need_tensor(projector, kRows, 2));
  ASSIGN_OR_RETURN(const TensorEntry* projection, need_tensor(projector, kAudioProjection, 2));
  RETURN_IF_ERROR(check_width(projector, *projection, text_width, "its sounds'"));
  for (const TensorEntry& tensor : projector.tensors) {
    if (!tensor.name.ends_with(".per_dim_scale.weight") || tensor.dtype == DType::kF32) continue;
    return file_error(Errc::kMismatch, projector.file, "tensor {} is {}, wanted F32", tensor.name,
                      to_string(tensor.dtype));
  }
  audio["subsampling_conv_channels"] = {first->shape[0], second->shape[0]};
  audio["conv_kernel_size"] = taps->shape[1];
  audio["output_proj_dims"] = rows->shape[0];
  audio["use_clipped_linears"] = projector.find("a.blk.0.attn_q.input_max") != nullptr;
  return audio;
}

/// Checks the projection of patches, whose axes are permuted.
Result<void> check_patches(const GgufModel& projector, const TensorEntry& patches,
                           const std::vector<std::int64_t>& wanted) {
  const bool plain = patches.dtype == DType::kF32 || patches.dtype == DType::kF16 || patches.dtype == DType::kBf16;
  if (patches.shape == wanted && plain && patches.element_count() > 0) return {};
  return file_error(Errc::kMismatch, projector.file, "tensor {} is {} [{}], wanted F32, F16 or BF16 [{}]", patches.name,
                      to_string(patches.dtype), fmt::join(patches.shape, ", "), fmt::join(wanted, ", "));
}

/// Returns the vision tower's config as in config.json.
Result<json> vision_config(const GgufModel& projector) {
  json vision = {{"model_type", "gemma4_vision"}};
  for (const auto& [to, from] : {std::pair("hidden_size", "embedding_length"),
                                 {"intermediate_size", "feed_forward_length"},
                                 {"num_hidden_layers", "block_count"},
                                 {"num_attention_heads", "attention.head_count"},
                                 {"patch_size", "patch_size"}}) {
    ASSIGN_OR_RETURN(vision[to], projector.metadata.get<std::int64_t>(fmt::format("clip.vision.{}", from)));
  }
  ASSIGN_OR_RETURN(vision["rms_norm_eps"], projector.metadata.get<double>("clip.vision.attention.layer_norm_epsilon"));
  ASSIGN_OR_RETURN(const TensorEntry* patches, need_tensor(projector, kPatches, 4));
  ASSIGN_OR_RETURN(const TensorEntry* positions, need_tensor(projector, kPositions, 3));
  ASSIGN_OR_RETURN(const TensorEntry* query, need_tensor(projector, kQuery, 2));
  const std::int64_t heads = vision["num_attention_heads"], side = vision["patch_size"];
  if (heads < 1 || query->shape[0] % heads != 0)
    return file_error(Errc::kMismatch, projector.file, "{} heads of {} rows of {}", heads, query->shape[0], kQuery);
  RETURN_IF_ERROR(check_patches(projector, *patches, {vision["hidden_size"], 3, side, side}));
  vision["head_dim"] = query->shape[0] / heads;
  vision["position_embedding_size"] = positions->shape[1];
  vision["use_clipped_linears"] = projector.find("v.blk.0.attn_q.input_max") != nullptr;
  vision["standardize"] = projector.find("v.std_scale") != nullptr;
  return vision;
}

/// Returns 12B's replacement for it.
Result<json> unified_vision_config(const GgufModel& projector, std::int64_t pooling) {
  json vision = {{"model_type", "gemma4_unified_vision"}};
  ASSIGN_OR_RETURN(vision["mm_embed_dim"], projector.metadata.get<std::int64_t>("clip.vision.embedding_length"));
  ASSIGN_OR_RETURN(vision["patch_size"], projector.metadata.get<std::int64_t>("clip.vision.patch_size"));
  ASSIGN_OR_RETURN(const TensorEntry* patches, need_tensor(projector, kPatches, 2));
  ASSIGN_OR_RETURN(const TensorEntry* positions, need_tensor(projector, kPositions, 3));
  const std::int64_t hidden = vision["mm_embed_dim"], side = vision["patch_size"];
  constexpr std::int64_t kSideMax = 1 << 8;
  if (side < 1 || side > kSideMax || pooling < 1 || pooling > kSideMax) {
    return file_error(Errc::kMalformed, projector.file,
                      "patches of {} pixels, {} along a side of a soft token, wanted 1 to {} of each", side, pooling,
                      kSideMax);
  }
  const std::int64_t pixels = side * pooling * side * pooling;
  RETURN_IF_ERROR(check_patches(projector, *patches, {hidden, 3 * pixels}));
  for (const char* name : {kPatchNorm, kPatchNormBias}) {
    ASSIGN_OR_RETURN(const TensorEntry* norm, need_tensor(projector, name, 1));
    RETURN_IF_ERROR(check_patches(projector, *norm, {3 * pixels}));
  }
  if (positions->shape[0] != 2 || positions->shape[1] < 1 || positions->element_count() == 0) {
    return file_error(Errc::kMismatch, projector.file, "tensor {} has shape [{}], wanted [2, positions, {}]",
                      kPositions, fmt::join(positions->shape, ", "), hidden);
  }
  vision["mm_posemb_size"] = positions->shape[1];
  return vision;
}

}  // namespace

std::optional<fs::path> find_projector(const fs::path& text_model) {
  const fs::path folder = text_model.has_parent_path() ? text_model.parent_path() : fs::path(".");
  std::vector<std::string> names;
  std::error_code ignored;
  for (fs::directory_iterator at(folder, ignored), end; at != end; at.increment(ignored))
    names.push_back(at->path().filename().string());
  const std::string name = choose_projector(std::move(names), text_model.filename().string());
  return name.empty() ? std::nullopt : std::optional(folder / name);
}

Result<json> add_projector(json config, const GgufModel& text, const GgufModel& projector) {
  ASSIGN_OR_RETURN(const auto architecture, projector.metadata.get<std::string_view>("general.architecture"));
  ASSIGN_OR_RETURN(const auto kind, kind_of(projector));
  if (architecture != "clip" || (kind != kTower && kind != kUnified)) {
    return file_error(Errc::kUnsupported, projector.file, "is a projector of kind {:?} ({:?}), wanted {} or {} (clip)",
                      kind.value_or("").substr(0, 80), architecture.substr(0, 80), kTower, kUnified);
  }
  const bool unified = kind == kUnified;
  ASSIGN_OR_RETURN(const auto pooling, projector.metadata.find<std::int64_t>("clip.vision.projector.scale_factor"));
  ASSIGN_OR_RETURN(json vision,
                   unified ? unified_vision_config(projector, pooling.value_or(3)) : vision_config(projector));
  vision["pooling_kernel_size"] = pooling.value_or(3);
  ASSIGN_OR_RETURN(const TensorEntry* projection, need_tensor(projector, kProjection, 2));
  const json width = config.at("hidden_size");
  RETURN_IF_ERROR(check_width(projector, *projection, width, "its"));
  // Inferred, for lack of a key: published models without per-layer embeddings have it (gemma4.md 8.3).
  if (text.find("per_layer_token_embd.weight") == nullptr) config["use_bidirectional_attention"] = "vision";
  ASSIGN_OR_RETURN(json audio, audio_config(projector, width));
  json whole = {{"model_type", unified ? "gemma4_unified" : "gemma4"},
                {"text_config", std::move(config)},
                {"vision_config", std::move(vision)},
                {"audio_config", std::move(audio)}};
  for (const auto& [key, token] : {std::pair("image_token_id", "<|image|>"),
                                   {"video_token_id", "<|video|>"},
                                   {"boi_token_id", "<|image>"},
                                   {"eoi_token_id", "<image|>"},
                                   {"audio_token_id", "<|audio|>"},
                                   {"boa_token_id", "<|audio>"},
                                   {"eoa_token_id", "<audio|>"}}) {
    if (const auto id = token_of(text, token)) whole[key] = *id;
  }
  return whole;
}

ProjectorTensors projector_tensors(const GgufModel& projector) {
  ProjectorTensors result;
  const bool unified = is_unified(projector);
  const auto made = std::make_shared<std::deque<std::vector<std::byte>>>();  // a deque keeps addresses
  for (const TensorEntry& tensor : projector.tensors) {
    const std::optional<std::string> name = hugging_face_name_of(tensor.name, unified);
    if (!name) continue;
    TensorEntry& renamed = result.tensors.emplace_back(tensor);
    renamed.name = *name;
    if (tensor.name == kPatches) {
      renamed.shape = {tensor.shape[0], tensor.element_count() / tensor.shape[0]};
      renamed.bytes = made->emplace_back(colours_last(tensor, static_cast<std::size_t>(tensor.shape[0])));
    } else if (unified && (tensor.name == kPatchNorm || tensor.name == kPatchNormBias)) {
      renamed.bytes = made->emplace_back(colours_last(tensor, 1));
    } else if (unified && tensor.name == kPositions) {
      renamed.shape = {tensor.shape[1], tensor.shape[0], tensor.shape[2]};
      renamed.bytes = made->emplace_back(coordinates_first(tensor));
    } else if (tensor.name.ends_with(kTapsPart) && tensor.shape.size() == 2) {
      renamed.shape = {tensor.shape[0], 1, tensor.shape[1]};
    } else if (name->ends_with(kScale) && tensor.dtype == DType::kF32) {
      renamed.bytes = made->emplace_back(before_softplus(tensor));
    }
  }
  result.made = made;
  return result;
}

}  // namespace outrider
