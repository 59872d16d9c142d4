#include "common/model/config.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "common/checkpoint/gguf.h"
#include "common/checkpoint/mapped_file.h"
#include "common/model/gguf_config.h"

namespace outrider {
namespace {

using nlohmann::json;

// Bounds no plausible model reaches; they keep every product of sizes inside 63 bits.
constexpr std::int64_t kVocabMax = 1 << 24, kWidthMax = 1 << 20, kHeadsMax = 1 << 10;
constexpr std::int64_t kHeadDimMax = 1 << 13, kLayersMax = 1 << 10, kExpertsMax = 1 << 12;
// As on the wire: kTokensMax.
constexpr std::int64_t kPositionsMax = std::int64_t{1} << 20;
constexpr std::size_t kFileBytesMax = 1 << 20;

constexpr const char* kSlidingName = "sliding_attention";
constexpr const char* kFullName = "full_attention";

/// A JSON value as it may appear in a one-line message.
std::string describe(const json& value) {
  if (value.is_array()) return fmt::format("an array of {}", value.size());
  if (value.is_object()) return "an object";
  return fmt::format("{:.80}", value.dump(-1, ' ', true, json::error_handler_t::replace));
}

/// The first thing that was wrong with a file. Reading goes on with defaults after it, so that the
/// code that reads need not branch on errors; nothing is used before the error has been looked at.
struct FirstError {
  std::string file;
  std::optional<Error> error;

  void set(Errc code, std::string_view problem) {
    if (!error) error = Error{code, fmt::format("{}: {}", file, problem)};
  }
};

/// The keys of one JSON object. A null value counts as an absent key, as in Hugging Face's classes.
class Keys {
 public:
  /// @param prefix  what to put before a key in messages, such as "text_config.".
  Keys(const json& object, std::string prefix, FirstError& first_error)
      : object_(object), prefix_(std::move(prefix)), first_error_(first_error) {}

  /// Whether the key is there, null or not.
  bool contains(const char* key) const { return object_.contains(key); }

  /// Null if the key is absent.
  const json* find(const char* key) const {
    const auto at = object_.find(key);
    return at == object_.end() || at->is_null() ? nullptr : &*at;
  }

  void fail(Errc code, const char* key, const json& seen, std::string_view wanted) const {
    first_error_.set(code, fmt::format("{}{} is {}, wanted {}", prefix_, key, describe(seen), wanted));
  }
  void fail_missing(const char* key, std::string_view wanted) const {
    first_error_.set(Errc::kMalformed, fmt::format("{}{} is missing, wanted {}", prefix_, key, wanted));
  }

  /// In [low, high]; without a fallback the key must be there.
  std::int64_t integer(const char* key, std::optional<std::int64_t> fallback, std::int64_t low,
                       std::int64_t high) const {
    const auto wanted = [&] { return fmt::format("a whole number from {} to {}", low, high); };
    const json* const value = find(key);
    if (value == nullptr) {
      if (!fallback) fail_missing(key, wanted());
      return fallback.value_or(low);
    }
    // An unsigned value beyond the signed range is out of our range too.
    const bool fits =
        value->is_number_integer() &&
        !(value->is_number_unsigned() && value->get<std::uint64_t>() > static_cast<std::uint64_t>(high)) &&
        low <= value->get<std::int64_t>() && value->get<std::int64_t>() <= high;
    if (fits) return value->get<std::int64_t>();
    fail(Errc::kMalformed, key, *value, wanted());
    return fallback.value_or(low);
  }

  double number(const char* key, std::optional<double> fallback, double low, double high) const {
    const auto wanted = [&] { return fmt::format("a number from {} to {}", low, high); };
    const json* const value = find(key);
    if (value == nullptr) {
      if (!fallback) fail_missing(key, wanted());
      return fallback.value_or(low);
    }
    const double x = value->is_number() ? value->get<double>() : low - 1;
    if (low <= x && x <= high) return x;
    fail(Errc::kMalformed, key, *value, wanted());
    return fallback.value_or(low);
  }

  bool boolean(const char* key, bool fallback) const {
    const json* const value = find(key);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) fail(Errc::kMalformed, key, *value, "true or false");
    return value->is_boolean() ? value->get<bool>() : fallback;
  }

  /// A string that is one of `allowed`; another one is kUnsupported. Without a fallback the key
  /// must be there.
  std::string choice(const char* key, std::optional<std::string> fallback,
                     std::initializer_list<const char*> allowed) const {
    const json* const value = find(key);
    const auto wanted = [&] { return fmt::format("{}", fmt::join(allowed, " or ")); };
    if (value == nullptr) {
      if (!fallback) fail_missing(key, wanted());
      return fallback.value_or("");
    }
    if (!value->is_string()) {
      fail(Errc::kMalformed, key, *value, wanted());
    } else if (std::ranges::find(allowed, value->get_ref<const std::string&>()) == allowed.end()) {
      fail(Errc::kUnsupported, key, *value, wanted());
    } else {
      return value->get<std::string>();
    }
    return fallback.value_or("");
  }

  /// The one value of a flag that we implement.
  void only(const char* key, bool wanted) const {
    if (boolean(key, wanted) != wanted) {
      fail(Errc::kUnsupported, key, !wanted, wanted ? "true" : "false");
    }
  }

  /// The keys of a nested object; of an empty one if the key is absent or not an object.
  Keys object(const char* key) const {
    static const json kEmpty = json::object();
    const json* const value = find(key);
    if (value != nullptr && !value->is_object()) fail(Errc::kMalformed, key, *value, "an object");
    return {value != nullptr && value->is_object() ? *value : kEmpty, fmt::format("{}{}.", prefix_, key), first_error_};
  }

  /// The object itself, for iteration.
  const json& raw() const { return object_; }

 private:
  const json& object_;
  std::string prefix_;
  FirstError& first_error_;
};

RopeConfig read_rope(const Keys& text, AttentionKind kind, bool used) {
  const bool sliding = kind == AttentionKind::kSliding;
  const RopeConfig defaults = sliding
                                  ? RopeConfig{.rope_theta = 1e4}
                                  : RopeConfig{.rope_theta = 1e6, .proportional = true, .partial_rotary_factor = 0.25};
  if (text.find("rope_parameters") == nullptr) return defaults;

  const Keys by_kind = text.object("rope_parameters");
  const char* const name = sliding ? kSlidingName : kFullName;
  if (by_kind.find(name) == nullptr) {
    if (used) by_kind.fail_missing(name, "the rotary parameters of these layers");
    return defaults;
  }
  const Keys keys = by_kind.object(name);
  RopeConfig rope{.rope_theta = keys.number("rope_theta", std::nullopt, 1, 1e12)};
  rope.proportional = keys.choice("rope_type", "default", {"default", "proportional"}) == "proportional";
  if (rope.proportional) {  // The default type has no use for these, and ignores them.
    rope.partial_rotary_factor = keys.number("partial_rotary_factor", 1, 0, 1);
    rope.factor = keys.number("factor", 1, 1e-3, 1e6);
  }
  return rope;
}

std::vector<AttentionKind> read_layer_types(const Keys& text, int num_hidden_layers) {
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
  kinds.back() = AttentionKind::kFull;  // whatever layer_types says
  return kinds;
}

/// What attention layers of both kinds have where no per-layer entry says otherwise.
struct HeadShape {
  std::int64_t head_dim, num_key_value_heads;
};

/// The newer spelling's entries: layer index -> what differs from the plain keys.
std::map<int, HeadShape> read_per_layer_config(const Keys& text, int num_hidden_layers, const HeadShape& plain) {
  std::map<int, HeadShape> shapes;
  const Keys entries = text.object("per_layer_config");
  for (const auto& [key, value] : entries.raw().items()) {
    // The key may be zero-padded ("05").
    unsigned index = 0;
    const char* const end = key.data() + key.size();
    const auto [parsed_to, status] = std::from_chars(key.data(), end, index);
    if (status != std::errc() || parsed_to != end || index >= static_cast<unsigned>(num_hidden_layers)) {
      text.fail(Errc::kMalformed, "per_layer_config key", json(key),
                fmt::format("a layer index from 0 to {}", num_hidden_layers - 1));
      continue;
    }
    const Keys entry = entries.object(key.c_str());
    const HeadShape shape{entry.integer("head_dim", plain.head_dim, 2, kHeadDimMax),
                          entry.integer("num_key_value_heads", plain.num_key_value_heads, 1, kHeadsMax)};
    for (const auto& [name, unused] : entry.raw().items()) {
      // A key we ignored would give a model that runs and is wrong.
      if (name != "head_dim" && name != "num_key_value_heads") {
        entries.fail(Errc::kUnsupported, (key + " key").c_str(), json(name), "head_dim or num_key_value_heads");
      }
    }
    if (!shapes.emplace(static_cast<int>(index), shape).second) {
      text.fail(Errc::kMalformed, "per_layer_config key", json(key), "each layer once");
    }
  }
  return shapes;
}

/// Resolves both spellings, the defaults and K/V sharing to one LayerConfig per layer.
std::vector<LayerConfig> read_layers(const Keys& text, const TextConfig& config, bool assistant,
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
      // One set of rotary angles serves all layers of a kind.
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

/// @param text_keys     text_config, or the top level of a text-only export.
/// @param default_type  model_type where text_config has none.
TextConfig read_text(const Keys& text, const std::string& default_type, bool assistant, FirstError& first_error) {
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

  // An assistant has no per-layer embeddings; the unified type has none unless it says so. A null
  // width switches them off: the one key for which null and absent differ.
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

  // "vision" concerns prefill of image blocks only; for text it is the same as null.
  text.choice("use_bidirectional_attention", "vision", {"vision"});
  text.choice("hidden_activation", "gelu_pytorch_tanh", {"gelu_pytorch_tanh"});
  text.only("attention_bias", false);
  text.only("tie_word_embeddings", true);

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

Result<json> parse_object(std::string_view text, std::string_view file) {
  if (text.size() > kFileBytesMax) {
    return Error{Errc::kOutOfRange,
                 fmt::format("{}: {} bytes long, wanted at most {}", file, text.size(), kFileBytesMax)};
  }
  json parsed = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (parsed.is_object()) return parsed;
  return Error{Errc::kMalformed, fmt::format("{}: {}, wanted a JSON object", file,
                                             parsed.is_discarded() ? "not JSON" : "is " + describe(parsed))};
}

std::string_view as_text(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

constexpr std::int64_t kTokenIdMax = std::numeric_limits<TokenId>::max();

/// The token ids under one key, an array or a single one; empty if the key is absent.
std::vector<TokenId> read_token_ids(const Keys& keys, const char* key) {
  const json* const value = keys.find(key);
  if (value == nullptr) return {};
  std::vector<TokenId> ids;
  const auto add = [&](const json& id) {
    const bool fits = id.is_number_unsigned() && id.get<std::uint64_t>() <= static_cast<std::uint64_t>(kTokenIdMax);
    if (fits) {
      ids.push_back(static_cast<TokenId>(id.get<std::uint64_t>()));
    } else {
      keys.fail(Errc::kMalformed, key, id, "a token id, or an array of some");
    }
  };
  if (!value->is_array()) {
    add(*value);
  } else {
    for (const json& id : *value) add(id);
  }
  return ids;
}

/// eos_token_id of one object; empty if it has none.
std::vector<TokenId> read_eos_token_ids(const Keys& keys) {
  constexpr const char* kKey = "eos_token_id";
  const json* const value = keys.find(kKey);
  if (value != nullptr && value->is_array() && value->empty()) {
    keys.fail(Errc::kMalformed, kKey, *value, "a token id, or an array of some");
  }
  return read_token_ids(keys, kKey);
}

/// A config.json, or the same text made from a GGUF.
struct ConfigText {
  std::string json;
  std::string file;  // its name in messages
  std::vector<std::string> notes;
};

Result<ConfigText> config_text(const std::filesystem::path& path) {
  ASSIGN_OR_RETURN(const auto gguf, find_gguf(path));
  if (gguf) {
    ASSIGN_OR_RETURN(const GgufModel model, GgufModel::open(*gguf));
    ASSIGN_OR_RETURN(GgufConfig config, gguf_config(model));
    return ConfigText{std::move(config.json), gguf->string(), std::move(config.notes)};
  }
  const std::filesystem::path file = path / "config.json";
  ASSIGN_OR_RETURN(const MappedFile mapped, MappedFile::open(file));
  return ConfigText{std::string(as_text(mapped)), file.string(), {}};
}

/// A token id of a GGUF's metadata.
Result<TokenId> to_token_id(const GgufMetadata& metadata, std::string_view key, std::int64_t id) {
  if (0 <= id && id <= kTokenIdMax) return static_cast<TokenId>(id);
  return Error{Errc::kMalformed, fmt::format("{}: {} is {}, wanted a token id", metadata.file().string(), key, id)};
}

Result<std::vector<TokenId>> gguf_eos_token_ids(const GgufMetadata& metadata) {
  std::vector<TokenId> ids;
  const auto add = [&ids](TokenId id) {
    if (std::ranges::find(ids, id) == ids.end()) ids.push_back(id);
  };
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id"}) {
    ASSIGN_OR_RETURN(const auto stated, metadata.find<std::int64_t>(key));
    if (!stated) continue;
    ASSIGN_OR_RETURN(const TokenId id, to_token_id(metadata, key, *stated));
    add(id);
  }
  // The file has room for one or two; the model's other ends (gemma4.md 1.2) are found by their texts.
  ASSIGN_OR_RETURN(const auto tokens, metadata.find<std::vector<std::string_view>>("tokenizer.ggml.tokens"));
  ASSIGN_OR_RETURN(const auto types, metadata.find<std::vector<std::int64_t>>("tokenizer.ggml.token_type"));
  if (tokens && types && tokens->size() == types->size()) {
    for (const std::string_view end : {"<turn|>", "<|tool_response>"}) {
      const auto at = static_cast<std::size_t>(std::ranges::find(*tokens, end) - tokens->begin());
      constexpr std::int64_t kControl = 3, kUserDefined = 4;  // the second, so that llama.cpp prints them
      const bool marked = at < tokens->size() && ((*types)[at] == kControl || (*types)[at] == kUserDefined);
      if (marked) add(static_cast<TokenId>(at));
    }
  }
  return ids;
}

}  // namespace

int TextConfig::last_owner(AttentionKind kind) const {
  for (int i = first_shared - 1; i >= 0; --i) {
    if (layers[static_cast<std::size_t>(i)].kind == kind) return i;
  }
  return -1;
}

Result<TextConfig> parse_text_config(std::string_view json_text, std::string_view file) {
  ASSIGN_OR_RETURN(const json root, parse_object(json_text, file));
  FirstError first_error{std::string(file), {}};
  const Keys top(root, "", first_error);
  const std::string type =
      top.choice("model_type", std::nullopt, {"gemma4", "gemma4_unified", "gemma4_text", "gemma4_unified_text"});
  const bool nested = top.find("text_config") != nullptr;
  if (!nested && (type == "gemma4" || type == "gemma4_unified")) {
    top.fail_missing("text_config", "an object");
  }
  top.only("tie_word_embeddings", true);
  const std::string default_type = type.starts_with("gemma4_unified") ? "gemma4_unified_text" : "gemma4_text";
  TextConfig config = read_text(nested ? top.object("text_config") : top, default_type,
                                /*assistant=*/false, first_error);
  if (first_error.error) return *first_error.error;
  return config;
}

Result<AssistantConfig> parse_assistant_config(std::string_view json_text, std::string_view file) {
  ASSIGN_OR_RETURN(const json root, parse_object(json_text, file));
  FirstError first_error{std::string(file), {}};
  const Keys top(root, "", first_error);
  const std::string type = top.choice("model_type", std::nullopt, {"gemma4_assistant", "gemma4_unified_assistant"});
  if (top.find("text_config") == nullptr) top.fail_missing("text_config", "an object");
  top.only("tie_word_embeddings", true);

  AssistantConfig config{};
  config.text =
      read_text(top.object("text_config"), type == "gemma4_unified_assistant" ? "gemma4_unified_text" : "gemma4_text",
                /*assistant=*/true, first_error);
  config.backbone_hidden_size = top.integer("backbone_hidden_size", 1536, 1, kWidthMax);
  config.use_ordered_embeddings = top.boolean("use_ordered_embeddings", false);
  if (config.use_ordered_embeddings) {
    config.num_centroids = top.integer("num_centroids", 2048, 1, config.text.vocab_size);
    config.centroid_intermediate_top_k = top.integer("centroid_intermediate_top_k", 32, 1, config.num_centroids);
    // Each centroid stands for vocab_size / num_centroids tokens.
    if (config.text.vocab_size % config.num_centroids != 0) {
      top.fail(Errc::kMalformed, "num_centroids", config.num_centroids,
               fmt::format("a divisor of vocab_size = {}", config.text.vocab_size));
    }
  }
  if (first_error.error) return *first_error.error;
  return config;
}

Result<std::string> load_config_json(const std::filesystem::path& path) {
  ASSIGN_OR_RETURN(ConfigText text, config_text(path));
  return std::move(text.json);
}

Result<TextConfig> load_text_config(const std::filesystem::path& path) {
  ASSIGN_OR_RETURN(ConfigText text, config_text(path));
  ASSIGN_OR_RETURN(TextConfig config, parse_text_config(text.json, text.file));
  config.notes = std::move(text.notes);
  return config;
}

Result<AssistantConfig> load_assistant_config(const std::filesystem::path& path) {
  ASSIGN_OR_RETURN(ConfigText text, config_text(path));
  ASSIGN_OR_RETURN(AssistantConfig config, parse_assistant_config(text.json, text.file));
  config.text.notes = std::move(text.notes);
  return config;
}

Result<std::vector<TokenId>> load_eos_token_ids(const std::filesystem::path& path) {
  const std::vector<TokenId> fallback{1};
  ASSIGN_OR_RETURN(const auto gguf, find_gguf(path));
  if (gguf) {
    ASSIGN_OR_RETURN(const GgufModel model, GgufModel::open(*gguf));
    ASSIGN_OR_RETURN(const std::vector<TokenId> ids, gguf_eos_token_ids(model.metadata));
    return ids.empty() ? fallback : ids;
  }
  for (const char* name : {"generation_config.json", "config.json"}) {
    const std::filesystem::path file_path = path / name;
    const Result<MappedFile> file = MappedFile::open(file_path);
    if (!file && file.error().code == Errc::kNotFound) continue;
    if (!file) return file.error();
    ASSIGN_OR_RETURN(const json root, parse_object(as_text(*file), file_path.string()));

    FirstError first_error{file_path.string(), {}};
    const Keys top(root, "", first_error);
    std::vector<TokenId> ids = read_eos_token_ids(top.object("text_config"));
    if (ids.empty()) ids = read_eos_token_ids(top);
    if (first_error.error) return *first_error.error;
    if (!ids.empty()) return ids;
  }
  return fallback;
}

Result<std::vector<TokenId>> load_suppress_tokens(const std::filesystem::path& path) {
  ASSIGN_OR_RETURN(const auto gguf, find_gguf(path));
  if (gguf) {
    constexpr std::string_view kKey = "tokenizer.ggml.suppress_tokens";
    ASSIGN_OR_RETURN(const GgufModel model, GgufModel::open(*gguf));
    ASSIGN_OR_RETURN(const auto stated, model.metadata.find<std::vector<std::int64_t>>(kKey));
    std::vector<TokenId> ids;
    for (const std::int64_t id : stated.value_or(std::vector<std::int64_t>())) {
      ASSIGN_OR_RETURN(ids.emplace_back(), to_token_id(model.metadata, kKey, id));
    }
    return ids;
  }
  const std::filesystem::path file_path = path / "generation_config.json";
  const Result<MappedFile> file = MappedFile::open(file_path);
  if (!file && file.error().code == Errc::kNotFound) return std::vector<TokenId>();
  if (!file) return file.error();
  ASSIGN_OR_RETURN(const json root, parse_object(as_text(*file), file_path.string()));
  FirstError first_error{file_path.string(), {}};
  std::vector<TokenId> ids = read_token_ids(Keys(root, "", first_error), "suppress_tokens");
  if (first_error.error) return *first_error.error;
  return ids;
}

Result<GenerationDefaults> load_generation_defaults(const std::filesystem::path& path) {
  ASSIGN_OR_RETURN(const auto gguf, find_gguf(path));
  if (gguf) return GenerationDefaults();
  const std::filesystem::path file_path = path / "generation_config.json";
  const Result<MappedFile> file = MappedFile::open(file_path);
  if (!file && file.error().code == Errc::kNotFound) return GenerationDefaults();
  if (!file) return file.error();
  ASSIGN_OR_RETURN(const json root, parse_object(as_text(*file), file_path.string()));
  FirstError first_error{file_path.string(), {}};
  const Keys keys(root, "", first_error);
  GenerationDefaults defaults;
  if (keys.find("temperature") != nullptr)
    defaults.temperature = static_cast<float>(keys.number("temperature", 1, 0, 100));
  if (keys.find("top_p") != nullptr) defaults.top_p = static_cast<float>(keys.number("top_p", 1, 1e-6, 1));
  if (keys.find("top_k") != nullptr)
    defaults.top_k = static_cast<std::int32_t>(keys.integer("top_k", 0, 0, std::numeric_limits<std::int32_t>::max()));
  if (first_error.error) return *first_error.error;
  return defaults;
}

}  // namespace outrider
