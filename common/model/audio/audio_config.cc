#include "common/model/audio/audio_config.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/base/json_fields.h"
#include "common/model/audio/audio_features.h"

namespace outrider {
namespace {

// Bounds beyond any plausible tower.
constexpr std::int64_t kWidthMax = 1 << 16, kLayersMax = 1 << 10, kFramesMax = 1 << 8, kTokensMax = 1 << 24;

/// Reads the keys that every model with audio has.
AudioConfig read_text_side(const JsonFields& top) {
  const char* const eoa = top.find("eoa_token_id") != nullptr ? "eoa_token_id" : "eoa_token_index";
  AudioConfig config = {};
  config.text_hidden_size = top.object("text_config").integer("hidden_size", 2304, 1, 1 << 20);
  config.audio_token_id = static_cast<TokenId>(top.integer("audio_token_id", 258881, 0, kTokensMax));
  config.boa_token_id = static_cast<TokenId>(top.integer("boa_token_id", 256000, 0, kTokensMax));
  config.eoa_token_id = static_cast<TokenId>(top.integer(eoa, 258883, 0, kTokensMax));
  return config;
}

/// Reads 12B's config.
AudioConfig read_without_tower(const JsonFields& top, const JsonFields& keys) {
  AudioConfig config = read_text_side(top);
  config.without_tower = true;
  config.hidden_size = keys.integer("audio_embed_dim", 640, 16, kWidthMax);
  config.rms_norm_eps = static_cast<float>(keys.number("rms_norm_eps", 1e-6, 1e-12, 1));
  return config;
}

AudioConfig read(const JsonFields& top, FirstError& first_error) {
  if (top.find("audio_config") == nullptr)
    first_error.set(Errc::kNotFound, "no audio_config: this model has no audio tower, and cannot hear sounds");
  const JsonFields keys = top.object("audio_config");
  const std::string type = keys.choice("model_type", "gemma4_audio", {"gemma4_audio", "gemma4_unified_audio"});
  if (type == "gemma4_unified_audio") return read_without_tower(top, keys);
  keys.choice("hidden_act", "silu", {"silu"});
  keys.integer("attention_context_right", 0, 0, 0);
  AudioConfig config = read_text_side(top);
  config.hidden_size = keys.integer("hidden_size", 1024, 4, kWidthMax);
  config.num_hidden_layers = static_cast<int>(keys.integer("num_hidden_layers", 12, 1, kLayersMax));
  config.num_attention_heads = keys.integer("num_attention_heads", 8, 1, kWidthMax);
  config.subsampling_conv_channels[0] = 128;
  config.subsampling_conv_channels[1] = 32;
  config.conv_kernel_size = keys.integer("conv_kernel_size", 5, 1, kFramesMax);
  config.attention_past = keys.integer("attention_context_left", 13, 2, kFramesMax) - 1;
  config.attention_logit_cap = static_cast<float>(keys.number("attention_logit_cap", 50, 1e-3, 1e6));
  config.gradient_clipping = static_cast<float>(
      std::min<double>(keys.number("gradient_clipping", 1e10, 1e-3, 1e300), std::numeric_limits<float>::max()));
  config.residual_weight = static_cast<float>(keys.number("residual_weight", 0.5, 0, 1e3));
  config.output_proj_dims = keys.integer("output_proj_dims", 1536, 1, kWidthMax);
  config.rms_norm_eps = static_cast<float>(keys.number("rms_norm_eps", 1e-6, 1e-12, 1));
  config.use_clipped_linears = keys.boolean("use_clipped_linears", true);
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

std::int64_t AudioConfig::soft_tokens(std::int64_t samples) const {
  return without_tower ? (samples + hidden_size - 1) / hidden_size : audio_soft_tokens(samples);
}

Result<AudioConfig> parse_audio_config(std::string_view text, std::string_view file) {
  return read_json_object(text, file, read);
}

Result<AudioConfig> load_audio_config(const ModelFiles& files) {
  ASSIGN_OR_RETURN(const ModelText text, files.tower_config_json());
  return parse_audio_config(text.text, text.name);
}

}  // namespace outrider
