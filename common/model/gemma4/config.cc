#include "common/model/gemma4/config.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/base/json_fields.h"
#include "common/base/text.h"
#include "common/model/gemma4/config_fields.h"

namespace outrider {
namespace {

using nlohmann::json;

// Bounds beyond any plausible model; they keep every product of sizes inside 63 bits.
constexpr std::int64_t kVocabMax = 1 << 24, kWidthMax = 1 << 20, kHeadsMax = 1 << 10;
constexpr std::int64_t kHeadDimMax = 1 << 13, kLayersMax = 1 << 10, kExpertsMax = 1 << 12;
// The wire's limit, kTokensMax.
constexpr std::int64_t kPositionsMax = std::int64_t{1} << 20;

constexpr const char* kSlidingName = "sliding_attention";
constexpr const char* kFullName = "full_attention";

RopeConfig read_rope(const JsonFields& text, AttentionKind kind, bool used) {
  const bool sliding = kind == AttentionKind::kSliding;
  const RopeConfig defaults = sliding
                                  ? RopeConfig{.rope_theta = 1e4}
                                  : RopeConfig{.rope_theta = 1e6, .proportional = true, .partial_rotary_factor = 0.25};
  if (text.find("rope_parameters") == nullptr) return defaults;

  const JsonFields by_kind = text.object("rope_parameters");
  const char* const name = sliding ? kSlidingName : kFullName;
  if (by_kind.find(name) == nullptr) {
    if (used) by_kind.wrong(name, "the rotary parameters of these layers");
    return defaults;
  }
  const JsonFields keys = by_kind.object(name);
  RopeConfig rope{.rope_theta = keys.number("rope_theta", std::nullopt, 1, 1e12)};
  rope.proportional = keys.choice("rope_type", "default", {"default", "proportional"}) == "proportional";
  if (rope.proportional) {  // the default type ignores these keys
    rope.partial_rotary_factor = keys.number("partial_rotary_factor", 1, 0, 1);
    rope.factor = keys.number("factor", 1, 1e-3, 1e6);
  }
  return rope;
}

std::vector<AttentionKind> read_layer_types(const JsonFields& text, int num_hidden_layers) {
  const auto count = static_cast<std::size_t>(num_hidden_layers);
  std::vector<AttentionKind> kinds(count);
  const json* types = text.find("layer_types");
  if (types != nullptr && (!types->is_array() || types->size() != count)) {
    text.fail(Errc::kMalformed, "layer_types", *types, fmt::format("an array of num_hidden_layers = {}", count));
    types = nullptr;
  }
  for (std::size_t i = 0; i < count; ++i) {
    bool full = i % 6 == 5;
    if (types != nullptr) {
      const json& type = (*types)[i];
      full = type == kFullName;
      if (!full && type != kSlidingName) {
        text.fail(Errc::kUnsupported, fmt::format("layer_types[{}]", i).c_str(), type,
                  fmt::format("{} or {}", kSlidingName, kFullName));
      }
    }
    kinds[i] = full ? AttentionKind::kFull : AttentionKind::kSliding;
  }
  kinds.back() = AttentionKind::kFull;  // whatever layer_types has
  return kinds;
}

/// Common values of attention layers, by kind, unless a per-layer entry overrides them.
struct HeadShape {
  std::int64_t head_dim, num_key_value_heads;
};

/// Reads the newer spelling: layer index -> values that differ from the common ones.
std::map<int, HeadShape> read_per_layer_config(const JsonFields& text, int num_hidden_layers, const HeadShape& plain) {
  std::map<int, HeadShape> shapes;
  const JsonFields entries = text.object("per_layer_config");
  for (const auto& [key, value] : entries.raw().items()) {
    // The key may be zero-padded ("05").
    const auto index = to_number<unsigned>(key);
    if (!index || *index >= static_cast<unsigned>(num_hidden_layers)) {
      text.fail(Errc::kMalformed, "per_layer_config key", json(key),
                fmt::format("a layer index from 0 to {}", num_hidden_layers - 1));
      continue;
    }
    const JsonFields entry = entries.object(key.c_str());
    const HeadShape shape{entry.integer("head_dim", plain.head_dim, 2, kHeadDimMax),
                          entry.integer("num_key_value_heads", plain.num_key_value_heads, 1, kHeadsMax)};
    for (const auto& [name, unused] : entry.raw().items()) {
      // Ignoring an unknown key would give a model that runs and is wrong.
      if (name != "head_dim" && name != "num_key_value_heads") {
        entries.fail(Errc::kUnsupported, (key + " key").c_str(), json(name), "head_dim or num_key_value_heads");
      }
    }
    if (!shapes.emplace(static_cast<int>(*index), shape).second) {
      text.fail(Errc::kMalformed, "per_layer_config key", json(key), "each layer once");
    }
  }
  return shapes;
}

/// Resolves both spellings, the defaults and K/V sharing to one LayerConfig per layer.
std::vector<LayerConfig> read_layers(const JsonFields& text, const TextConfig& config, bool assistant,
                                     FirstError& first_error) {
  const bool attention_k_eq_v = text.boolean("attention_k_eq_v", false);
  const bool use_double_wide_mlp = text.boolean("use_double_wide_mlp", false);
  const HeadShape sliding{text.integer("head_dim", 256, 2, kHeadDimMax),
                          text.integer("num_key_value_heads", 4, 1, kHeadsMax)};
  HeadShape full = sliding;
  if (!text.contains("per_layer_config")) {  // older spelling
    full.head_dim = text.integer("global_head_dim", 512, 2, kHeadDimMax);
    const std::int64_t own = text.integer("num_global_key_value_heads", 0, 0, kHeadsMax);
    if (attention_k_eq_v && own > 0) full.num_key_value_heads = own;
  }
  const std::map<int, HeadShape> entries = read_per_layer_config(text, config.num_hidden_layers, sliding);
  const std::vector<AttentionKind> kinds = read_layer_types(text, config.num_hidden_layers);

  std::vector<LayerConfig> layers;
  int last_owners[2] = {kDonorOutside, kDonorOutside};  // by kind
  for (int i = 0; i < config.num_hidden_layers; ++i) {
    const AttentionKind kind = kinds[static_cast<std::size_t>(i)];
    const bool is_full = kind == AttentionKind::kFull, owns_kv = i < config.first_shared;
    const auto entry = entries.find(i);
    const HeadShape shape = entry != entries.end() ? entry->second : is_full ? full : sliding;
    int& last_owner = last_owners[is_full];
    if (owns_kv) last_owner = i;
    layers.push_back({.kind = kind,
                      .head_dim = shape.head_dim,
                      .num_key_value_heads = shape.num_key_value_heads,
                      .intermediate_size = config.intermediate_size * (use_double_wide_mlp && !owns_kv ? 2 : 1),
                      .donor = last_owner,
                      .owns_kv = owns_kv,
                      .k_eq_v = is_full && attention_k_eq_v});

    const auto fail = [&](const std::string& problem) {
      first_error.set(Errc::kMalformed, fmt::format("layer {}: {}", i, problem));
    };
    if (shape.head_dim % 2 != 0) fail(fmt::format("head_dim is {}, wanted an even number", shape.head_dim));
    if (config.num_attention_heads % shape.num_key_value_heads != 0) {
      fail(fmt::format("num_attention_heads is {}, wanted a multiple of num_key_value_heads = {}",
                       config.num_attention_heads, shape.num_key_value_heads));
    }
    if (owns_kv || assistant) {
      // All layers of a kind share one set of rotary angles.
      const auto first =
          std::find_if(layers.begin(), layers.end(), [&](const LayerConfig& l) { return l.kind == kind; });
      if (first->head_dim != shape.head_dim) {
        fail(fmt::format("head_dim is {}, wanted {} as in the first {} layer", shape.head_dim, first->head_dim,
                         is_full ? kFullName : kSlidingName));
      }
      continue;
    }
    if (last_owner == kDonorOutside) {
      fail(fmt::format("shares the K/V of an earlier {} layer, but num_kv_shared_layers leaves none",
                       is_full ? kFullName : kSlidingName));
      continue;
    }
    const LayerConfig& donor = layers[static_cast<std::size_t>(last_owner)];
    if (donor.head_dim != shape.head_dim || donor.num_key_value_heads != shape.num_key_value_heads) {
      fail(fmt::format("reads K/V of {} x {} (heads x head_dim), but layer {} has {} x {}", shape.num_key_value_heads,
                       shape.head_dim, last_owner, donor.num_key_value_heads, donor.head_dim));
    }
  }
  if (assistant) text.only("use_double_wide_mlp", false);
  return layers;
}

}  // namespace

TextConfig read_text_fields(const JsonFields& text, const std::string& default_type, bool assistant,
                            FirstError& first_error) {
  TextConfig config;
  config.model_type = text.choice("model_type", default_type, {"gemma4_text", "gemma4_unified_text"});
  const bool unified = config.model_type == "gemma4_unified_text";

  config.vocab_size = text.integer("vocab_size", 262144, 1, kVocabMax);
  config.hidden_size = text.integer("hidden_size", 2304, 1, kWidthMax);
  config.intermediate_size = text.integer("intermediate_size", 9216, 1, kWidthMax);
  config.num_hidden_layers = static_cast<int>(text.integer("num_hidden_layers", 30, 1, kLayersMax));
  config.num_attention_heads = text.integer("num_attention_heads", 8, 1, kHeadsMax);
  config.sliding_window = text.integer("sliding_window", unified ? 1024 : 512, 1, kPositionsMax);
  config.rms_norm_eps = static_cast<float>(text.number("rms_norm_eps", 1e-6, 1e-12, 1));
  config.final_logit_softcapping = text.find("final_logit_softcapping") == nullptr
                                       ? 0.0f
                                       : static_cast<float>(text.number("final_logit_softcapping", 0, 1e-3, 1e6));
  config.max_position_embeddings = text.integer("max_position_embeddings", unified ? 262144 : 131072, 1, kPositionsMax);

  // An assistant has no per-layer embeddings; the unified type has them only if the key is there. A null width switches
  // them off: the one key for which null and absent differ.
  const bool without_ple = assistant || unified || text.contains("hidden_size_per_layer_input");
  config.hidden_size_per_layer_input =
      text.integer("hidden_size_per_layer_input", without_ple ? 0 : 256, 0, assistant ? 0 : kWidthMax);
  config.vocab_size_per_layer_input =
      text.integer("vocab_size_per_layer_input", config.hidden_size_per_layer_input > 0 ? 262144 : 0, 0, kVocabMax);
  if (config.hidden_size_per_layer_input > 0 && config.vocab_size_per_layer_input < config.vocab_size) {
    text.fail(Errc::kMalformed, "vocab_size_per_layer_input", config.vocab_size_per_layer_input,
              fmt::format("at least vocab_size = {}", config.vocab_size));
  }

  config.enable_moe_block = text.boolean("enable_moe_block", false);
  config.num_experts = config.top_k_experts = config.moe_intermediate_size = 0;
  if (assistant) text.only("enable_moe_block", false);
  if (config.enable_moe_block) {
    config.num_experts = text.integer("num_experts", std::nullopt, 1, kExpertsMax);
    config.top_k_experts = text.integer("top_k_experts", std::nullopt, 1, config.num_experts);
    config.moe_intermediate_size = text.integer("moe_intermediate_size", std::nullopt, 1, kWidthMax);
  }

  // "vision" concerns prefill of image blocks only; for text it equals null.
  text.choice("use_bidirectional_attention", "vision", {"vision"});
  text.choice("hidden_activation", "gelu_pytorch_tanh", {"gelu_pytorch_tanh"});
  text.only("attention_bias", false);

  const std::int64_t count = config.num_hidden_layers;
  std::int64_t shared = text.integer("num_kv_shared_layers", 0, 0, assistant ? count : count - 1);
  if (assistant) {
    if (shared != 0 && shared != count) {
      text.fail(Errc::kUnsupported, "num_kv_shared_layers", shared,
                fmt::format("0 or num_hidden_layers = {} in an assistant", count));
    }
    shared = count;
  }
  config.first_shared = static_cast<int>(count - shared);
  config.layers = read_layers(text, config, assistant, first_error);
  config.sliding_rope =
      read_rope(text, AttentionKind::kSliding,
                std::ranges::find(config.layers, AttentionKind::kSliding, &LayerConfig::kind) != config.layers.end());
  config.full_rope = read_rope(text, AttentionKind::kFull, true);
  return config;
}

int TextConfig::last_owner(AttentionKind kind) const {
  for (int i = first_shared - 1; i >= 0; --i) {
    if (layers[static_cast<std::size_t>(i)].kind == kind) return i;
  }
  return -1;
}

Result<TextConfig> parse_text_config(std::string_view json_text, std::string_view file) {
  return read_json_object(json_text, file, [](const JsonFields& top, FirstError& first_error) {
    const std::string type =
        top.choice("model_type", std::nullopt, {"gemma4", "gemma4_unified", "gemma4_text", "gemma4_unified_text"});
    const bool nested = top.find("text_config") != nullptr;
    if (!nested && (type == "gemma4" || type == "gemma4_unified")) {
      top.wrong("text_config", "an object");
    }
    top.only("tie_word_embeddings", true);
    const std::string default_type = type.starts_with("gemma4_unified") ? "gemma4_unified_text" : "gemma4_text";
    const JsonFields text = nested ? top.object("text_config") : top;
    text.only("tie_word_embeddings", true);
    return read_text_fields(text, default_type, /*assistant=*/false, first_error);
  });
}

Result<AssistantConfig> parse_assistant_config(std::string_view json_text, std::string_view file) {
  return read_json_object(json_text, file, [](const JsonFields& top, FirstError& first_error) {
    const std::string type = top.choice("model_type", std::nullopt, {"gemma4_assistant", "gemma4_unified_assistant"});
    if (top.find("text_config") == nullptr) top.wrong("text_config", "an object");
    top.only("tie_word_embeddings", true);

    AssistantConfig config{};
    const JsonFields text = top.object("text_config");
    text.only("tie_word_embeddings", true);
    config.text = read_text_fields(text, type == "gemma4_unified_assistant" ? "gemma4_unified_text" : "gemma4_text",
                                   /*assistant=*/true, first_error);
    config.backbone_hidden_size = top.integer("backbone_hidden_size", 1536, 1, kWidthMax);
    config.use_ordered_embeddings = top.boolean("use_ordered_embeddings", false);
    if (config.use_ordered_embeddings) {
      config.num_centroids = top.integer("num_centroids", 2048, 1, config.text.vocab_size);
      config.centroid_intermediate_top_k = top.integer("centroid_intermediate_top_k", 32, 1, config.num_centroids);
      // Each centroid has vocab_size / num_centroids tokens.
      if (config.text.vocab_size % config.num_centroids != 0) {
        top.fail(Errc::kMalformed, "num_centroids", config.num_centroids,
                 fmt::format("a divisor of vocab_size = {}", config.text.vocab_size));
      }
    }
    return config;
  });
}

Result<TextConfig> load_text_config(const ModelFiles& files) {
  ASSIGN_OR_RETURN(ModelText text, files.need_config_json());
  ASSIGN_OR_RETURN(TextConfig config, parse_text_config(text.text, text.name));
  config.notes = std::move(text.notes);
  return config;
}

Result<AssistantConfig> load_assistant_config(const ModelFiles& files) {
  ASSIGN_OR_RETURN(ModelText text, files.need_config_json());
  ASSIGN_OR_RETURN(AssistantConfig config, parse_assistant_config(text.text, text.name));
  config.text.notes = std::move(text.notes);
  return config;
}

}  // namespace outrider
