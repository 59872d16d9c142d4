#include "common/audio/audio_config.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/base/json_fields.h"

namespace outrider {
namespace {

// Bounds that no plausible tower reaches.
constexpr std::int64_t kWidthMax = 1 << 16, kLayersMax = 1 << 10, kFramesMax = 1 << 8, kTokensMax = 1 << 24;

AudioConfig read(const JsonFields& top) {
  const JsonFields keys = top.object("audio_config"), text = top.object("text_config");
  keys.choice("model_type", "gemma4_audio", {"gemma4_audio"});
  keys.choice("hidden_act", "silu", {"silu"});
  keys.integer("attention_context_right", 0, 0, 0);
  const char* const eoa = top.find("eoa_token_id") != nullptr ? "eoa_token_id" : "eoa_token_index";
  AudioConfig config{
      .hidden_size = keys.integer("hidden_size", 1024, 4, kWidthMax),
      .num_hidden_layers = static_cast<int>(keys.integer("num_hidden_layers", 12, 1, kLayersMax)),
      .num_attention_heads = keys.integer("num_attention_heads", 8, 1, kWidthMax),
      .subsampling_conv_channels = {128, 32},
      .conv_kernel_size = keys.integer("conv_kernel_size", 5, 1, kFramesMax),
      .attention_past = keys.integer("attention_context_left", 13, 2, kFramesMax) - 1,
      .attention_logit_cap = static_cast<float>(keys.number("attention_logit_cap", 50, 1e-3, 1e6)),
      .gradient_clipping = static_cast<float>(
          std::min<double>(keys.number("gradient_clipping", 1e10, 1e-3, 1e300), std::numeric_limits<float>::max())),
      .residual_weight = static_cast<float>(keys.number("residual_weight", 0.5, 0, 1e3)),
      .output_proj_dims = keys.integer("output_proj_dims", 1536, 1, kWidthMax),
      .rms_norm_eps = static_cast<float>(keys.number("rms_norm_eps", 1e-6, 1e-12, 1)),
      .use_clipped_linears = keys.boolean("use_clipped_linears", true),
      .text_hidden_size = text.integer("hidden_size", 2304, 1, 1 << 20),
      .audio_token_id = static_cast<TokenId>(top.integer("audio_token_id", 258881, 0, kTokensMax)),
      .boa_token_id = static_cast<TokenId>(top.integer("boa_token_id", 256000, 0, kTokensMax)),
      .eoa_token_id = static_cast<TokenId>(top.integer(eoa, 258883, 0, kTokensMax)),
  };
  if (const nlohmann::json* const channels = keys.find("subsampling_conv_channels")) {
    const auto fits = [](const nlohmann::json& n) { return n.is_number_integer() && 1 <= n && n <= kWidthMax; };
    if (!channels->is_array() || channels->size() != 2 || !std::ranges::all_of(*channels, fits)) {
      keys.fail(Errc::kMalformed, "subsampling_conv_channels", *channels,
                fmt::format("two numbers of 1 to {}", kWidthMax));
    } else {
      for (std::size_t i = 0; i < 2; ++i) config.subsampling_conv_channels[i] = (*channels)[i];
    }
  }
  if (config.hidden_size % (2 * config.num_attention_heads) != 0) {
    keys.fail(Errc::kMalformed, "hidden_size", config.hidden_size,
              fmt::format("a multiple of twice num_attention_heads, {}", 2 * config.num_attention_heads));
  }
  return config;
}

}  // namespace

Result<AudioConfig> parse_audio_config(std::string_view text, std::string_view file) {
  ASSIGN_OR_RETURN(const nlohmann::json root, parse_json_object(text, file));
  FirstError first_error{std::string(file)};
  const JsonFields top(root, "", first_error);
  if (top.find("audio_config") == nullptr) {
    return Error{Errc::kNotFound,
                 fmt::format("{}: no audio_config: this model has no audio tower, and cannot hear sounds", file)};
  }
  const AudioConfig config = read(top);
  if (first_error.error) return *first_error.error;
  return config;
}

Result<AudioConfig> load_audio_config(const ModelFiles& files) {
  ASSIGN_OR_RETURN(const std::optional<ModelText> text, files.config_json());
  if (!text) return Error{Errc::kNotFound, fmt::format("{}: No such file", (files.path() / "config.json").string())};
  return parse_audio_config(text->text, text->name);
}

}  // namespace outrider
