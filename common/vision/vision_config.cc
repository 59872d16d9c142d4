#include "common/vision/vision_config.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/base/json_fields.h"

namespace outrider {
namespace {

// Bounds that no plausible tower reaches.
constexpr std::int64_t kWidthMax = 1 << 16, kHeadDimMax = 1 << 10, kLayersMax = 1 << 10, kSideMax = 1 << 8;
constexpr std::int64_t kPositionsMax = 1 << 20, kTokensMax = 1 << 24;

VisionConfig read(const JsonFields& top) {
  const JsonFields keys = top.object("vision_config"), text = top.object("text_config");
  keys.choice("model_type", "gemma4_vision", {"gemma4_vision"});
  keys.choice("hidden_activation", "gelu_pytorch_tanh", {"gelu_pytorch_tanh"});
  keys.only("attention_bias", false);
  const std::int64_t heads = keys.integer("num_attention_heads", 12, 1, kWidthMax);
  keys.integer("num_key_value_heads", heads, heads, heads);
  VisionConfig config{
      .hidden_size = keys.integer("hidden_size", 768, 1, kWidthMax),
      .intermediate_size = keys.integer("intermediate_size", 3072, 1, kWidthMax),
      .num_hidden_layers = static_cast<int>(keys.integer("num_hidden_layers", 16, 1, kLayersMax)),
      .num_attention_heads = heads,
      .head_dim = keys.integer("head_dim", 64, 4, kHeadDimMax),
      .patch_size = keys.integer("patch_size", 16, 1, kSideMax),
      .pooling_kernel_size = keys.integer("pooling_kernel_size", 3, 1, kSideMax),
      .position_embedding_size = keys.integer("position_embedding_size", 10240, 1, kPositionsMax),
      .rms_norm_eps = static_cast<float>(keys.number("rms_norm_eps", 1e-6, 1e-12, 1)),
      .rope_theta = 100,
      .use_clipped_linears = keys.boolean("use_clipped_linears", false),
      .standardize = keys.boolean("standardize", false),
      .both_ways =
          text.find("use_bidirectional_attention") != nullptr && text.text("use_bidirectional_attention") == "vision",
      .text_hidden_size = text.integer("hidden_size", 2304, 1, 1 << 20),
      .image_token_id = static_cast<TokenId>(top.integer("image_token_id", 258880, 0, kTokensMax)),
      .boi_token_id = static_cast<TokenId>(top.integer("boi_token_id", 255999, 0, kTokensMax)),
      .eoi_token_id = static_cast<TokenId>(top.integer("eoi_token_id", 258882, 0, kTokensMax)),
  };
  if (keys.find("rope_parameters") != nullptr) {
    const JsonFields rope = keys.object("rope_parameters");
    rope.choice("rope_type", "default", {"default", "axial"});
    config.rope_theta = rope.number("rope_theta", 100, 1, 1e12);
  }
  if (config.head_dim % 4 != 0)  // two coordinates, each of which turns pairs
    keys.fail(Errc::kMalformed, "head_dim", config.head_dim, "a multiple of 4");
  return config;
}

}  // namespace

Result<VisionConfig> parse_vision_config(std::string_view text, std::string_view file) {
  ASSIGN_OR_RETURN(const nlohmann::json root, parse_json_object(text, file));
  FirstError first_error{std::string(file)};
  const JsonFields top(root, "", first_error);
  if (top.find("vision_config") == nullptr) {
    return Error{Errc::kNotFound, fmt::format("{}: no vision_config: this model has no vision tower, and cannot see "
                                              "pictures",
                                              file)};
  }
  const VisionConfig config = read(top);
  if (first_error.error) return *first_error.error;
  return config;
}

Result<VisionConfig> load_vision_config(const ModelFiles& files) {
  ASSIGN_OR_RETURN(const std::optional<ModelText> text, files.config_json());
  if (!files.projector_error().empty()) return Error{Errc::kNotFound, files.projector_error()};
  if (!text) return Error{Errc::kNotFound, fmt::format("{}: No such file", (files.path() / "config.json").string())};
  return parse_vision_config(text->text, text->name);
}

}  // namespace outrider
