#include "common/model/vision/vision_config.h"

#include <nlohmann/json.hpp>

#include "common/base/json_fields.h"

namespace outrider {
namespace {

// Bounds beyond any plausible tower.
constexpr std::int64_t kWidthMax = 1 << 16, kHeadDimMax = 1 << 10, kLayersMax = 1 << 10, kSideMax = 1 << 8;
constexpr std::int64_t kPositionsMax = 1 << 20, kTokensMax = 1 << 24;

/// Reads the keys that every model with vision has.
VisionConfig read_text_side(const JsonFields& top) {
  const JsonFields text = top.object("text_config");
  VisionConfig config = {};
  config.text_hidden_size = text.integer("hidden_size", 2304, 1, 1 << 20);
  config.both_ways =
      text.find("use_bidirectional_attention") != nullptr && text.text("use_bidirectional_attention") == "vision";
  config.image_token_id = static_cast<TokenId>(top.integer("image_token_id", 258880, 0, kTokensMax));
  config.video_token_id = static_cast<TokenId>(top.integer("video_token_id", 258884, 0, kTokensMax));
  config.boi_token_id = static_cast<TokenId>(top.integer("boi_token_id", 255999, 0, kTokensMax));
  config.eoi_token_id = static_cast<TokenId>(top.integer("eoi_token_id", 258882, 0, kTokensMax));
  return config;
}

/// Reads 12B's config. Its patches are merged first: they are squares of patch_size * pooling_kernel_size pixels.
VisionConfig read_without_tower(const JsonFields& top, const JsonFields& keys) {
  VisionConfig config = read_text_side(top);
  config.without_tower = true;
  config.both_ways = config.both_ways || !top.object("text_config").contains("use_bidirectional_attention");
  config.patch_size = keys.integer("patch_size", 16, 1, kSideMax) * keys.integer("pooling_kernel_size", 3, 1, kSideMax);
  keys.integer("model_patch_size", config.patch_size, config.patch_size, config.patch_size);
  config.pooling_kernel_size = 1;
  config.hidden_size = keys.integer("mm_embed_dim", 3840, 1, kWidthMax);
  keys.integer("output_proj_dims", config.hidden_size, config.hidden_size, config.hidden_size);
  config.position_embedding_size = keys.integer("mm_posemb_size", 1120, 1, kPositionsMax);
  config.rms_norm_eps = static_cast<float>(keys.number("rms_norm_eps", 1e-6, 1e-12, 1));
  return config;
}

VisionConfig read(const JsonFields& top, FirstError& first_error) {
  if (top.find("vision_config") == nullptr)
    first_error.set(Errc::kNotFound, "no vision_config: this model has no vision tower, and cannot see pictures");
  const JsonFields keys = top.object("vision_config");
  const std::string type = keys.choice("model_type", "gemma4_vision", {"gemma4_vision", "gemma4_unified_vision"});
  if (type == "gemma4_unified_vision") return read_without_tower(top, keys);
  keys.choice("hidden_activation", "gelu_pytorch_tanh", {"gelu_pytorch_tanh"});
  keys.only("attention_bias", false);
  const std::int64_t heads = keys.integer("num_attention_heads", 12, 1, kWidthMax);
  keys.integer("num_key_value_heads", heads, heads, heads);
  VisionConfig config = read_text_side(top);
  config.hidden_size = keys.integer("hidden_size", 768, 1, kWidthMax);
  config.intermediate_size = keys.integer("intermediate_size", 3072, 1, kWidthMax);
  config.num_hidden_layers = static_cast<int>(keys.integer("num_hidden_layers", 16, 1, kLayersMax));
  config.num_attention_heads = heads;
  config.head_dim = keys.integer("head_dim", 64, 4, kHeadDimMax);
  config.patch_size = keys.integer("patch_size", 16, 1, kSideMax);
  config.pooling_kernel_size = keys.integer("pooling_kernel_size", 3, 1, kSideMax);
  config.position_embedding_size = keys.integer("position_embedding_size", 10240, 1, kPositionsMax);
  config.rms_norm_eps = static_cast<float>(keys.number("rms_norm_eps", 1e-6, 1e-12, 1));
  config.rope_theta = 100;
  config.use_clipped_linears = keys.boolean("use_clipped_linears", false);
  config.standardize = keys.boolean("standardize", false);
  if (keys.find("rope_parameters") != nullptr) {
    const JsonFields rope = keys.object("rope_parameters");
    rope.choice("rope_type", "default", {"default", "axial"});
    config.rope_theta = rope.number("rope_theta", 100, 1, 1e12);
  }
  if (config.head_dim % 4 != 0)  // two coordinates, each of which rotates pairs
    keys.fail(Errc::kMalformed, "head_dim", config.head_dim, "a multiple of 4");
  return config;
}

}  // namespace

Result<VisionConfig> parse_vision_config(std::string_view text, std::string_view file) {
  return read_json_object(text, file, read);
}

Result<VisionConfig> load_vision_config(const ModelFiles& files) {
  ASSIGN_OR_RETURN(const ModelText text, files.tower_config_json());
  return parse_vision_config(text.text, text.name);
}

}  // namespace outrider
