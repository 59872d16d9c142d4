#include "common/model/checkpoint/gguf_config.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/base/ids.h"
#include "common/model/checkpoint/gguf_names.h"
#include "common/os/files.h"

namespace outrider {
namespace {

using nlohmann::json;

constexpr std::int64_t kLayersMax = 1 << 10,
                       kWidthMax = 1 << 20;  // config.cc's limits, which bound loops and products here
constexpr float kNoRotation = 1e29f;         // rope_freqs divides pairs that must not rotate by 1e30
constexpr std::int64_t kTopCentroids = 32;   // Gemma4AssistantConfig's default; llama.cpp writes no key

class Translator {
 public:
  explicit Translator(const GgufModel& model) : model_(model), metadata_(model.metadata) {}

  Result<ModelText> translate() {
    ASSIGN_OR_RETURN(const std::string_view arch, metadata_.get<std::string_view>("general.architecture"));
    // Of llama.cpp, AtomicChat's converter, and ik_llama.cpp.
    const bool assistant = arch == "gemma4-assistant" || arch == "gemma4_assistant" || arch == "gemma4_mtp";
    if (!assistant && arch != "gemma4") {
      return file_error(Errc::kUnsupported, model_.file,
                        "general.architecture is {:?}, wanted gemma4 or gemma4-assistant", arch.substr(0, 80));
    }
    prefix_ = fmt::format("{}.", arch);
    RETURN_IF_ERROR(read_sizes());
    RETURN_IF_ERROR(read_layers(assistant));
    RETURN_IF_ERROR(read_rope());
    RETURN_IF_ERROR(read_experts());
    if (model_.find("output.weight") != nullptr)
      notes_.push_back("output.weight is not used: the head is token_embd.weight");
    text_["model_type"] = "gemma4_text";
    if (!assistant) return ModelText{text_.dump(), model_.file.string(), std::move(notes_)};

    json outer = {{"model_type", "gemma4_assistant"}};
    RETURN_IF_ERROR(read_assistant(outer));
    outer["text_config"] = std::move(text_);
    return ModelText{outer.dump(), model_.file.string(), std::move(notes_)};
  }

 private:
  template <typename... Args>
  Error error(Errc code, fmt::format_string<Args...> problem, Args&&... args) const {
    return file_error(code, model_.file, problem, std::forward<Args>(args)...);
  }
  std::string key(std::string_view name) const { return fmt::format("{}{}", prefix_, name); }
  std::string tensor_of(std::int64_t layer, std::string_view name) const {
    return fmt::format("blk.{}.{}.weight", layer, name);
  }

  Result<std::optional<std::int64_t>> stated(std::string_view name) const {
    return metadata_.find<std::int64_t>(key(name));
  }

  /// Returns the file's name of a tensor, which depends on its converter; empty without the tensor.
  std::string name_of(std::string_view hugging_face) const {
    const auto at = std::ranges::find(model_.tensors, hugging_face, [](const TensorEntry& tensor) {
      return hugging_face_name(tensor.name).value_or("");
    });
    return at == model_.tensors.end() ? "" : at->name;
  }

  /// Returns an extent of a tensor, outermost axis first; none without the tensor.
  std::optional<std::int64_t> extent(const std::string& tensor, std::size_t axis) const {
    const TensorEntry* const entry = model_.find(tensor);
    if (entry == nullptr || entry->shape.size() <= axis) return std::nullopt;
    return entry->shape[axis];
  }

  /// Records, once per key, that a tensor overruled the metadata.
  void note(std::string_view name, std::int64_t given, const std::string& tensor, std::int64_t seen) {
    if (given == seen || !noted_.insert(std::string(name)).second) return;
    notes_.push_back(fmt::format("{} is {}, but {} says {}, which is used", key(name), given, tensor, seen));
  }

  /// Returns a size from the metadata or a tensor, which takes precedence. One of them must exist.
  Result<std::int64_t> choose(std::string_view name, std::optional<std::int64_t> given, const std::string& tensor,
                              std::optional<std::int64_t> seen) {
    if (!seen && !given) return error(Errc::kNotFound, "{} is missing, wanted a whole number", key(name));
    if (seen && given) note(name, *given, tensor, *seen);
    return seen ? *seen : *given;
  }
  Result<std::int64_t> size(std::string_view name, const std::string& tensor, std::size_t axis) {
    ASSIGN_OR_RETURN(const std::optional<std::int64_t> given, stated(name));
    return choose(name, given, tensor, extent(tensor, axis));
  }

  /// Returns one number per layer, from an array or a common value; none if the key is absent.
  Result<std::vector<std::optional<std::int64_t>>> per_layer(std::string_view name) const {
    const std::string full = key(name);
    if (!metadata_.is_array(full)) {
      ASSIGN_OR_RETURN(const auto one, stated(name));
      return std::vector<std::optional<std::int64_t>>(layer_count(), one);
    }
    ASSIGN_OR_RETURN(const auto values, metadata_.get<std::vector<std::int64_t>>(full));
    if (values.size() != layer_count())
      return error(Errc::kMalformed, "{} has {} elements, wanted block_count = {}", full, values.size(), layers_);
    return std::vector<std::optional<std::int64_t>>(values.begin(), values.end());
  }
  std::size_t layer_count() const { return static_cast<std::size_t>(layers_); }

  Result<void> read_sizes() {
    ASSIGN_OR_RETURN(layers_, metadata_.get<std::int64_t>(key("block_count")));
    if (layers_ < 1 || layers_ > kLayersMax) {
      return error(Errc::kMalformed, "{} is {}, wanted a whole number from 1 to {}", key("block_count"), layers_,
                   kLayersMax);
    }
    text_["num_hidden_layers"] = layers_;
    ASSIGN_OR_RETURN(text_["hidden_size"], size("embedding_length", "token_embd.weight", 1));
    ASSIGN_OR_RETURN(text_["vocab_size"], size("vocab_size", "token_embd.weight", 0));
    ASSIGN_OR_RETURN(text_["max_position_embeddings"], metadata_.get<std::int64_t>(key("context_length")));
    ASSIGN_OR_RETURN(text_["sliding_window"], metadata_.get<std::int64_t>(key("attention.sliding_window")));
    ASSIGN_OR_RETURN(text_["rms_norm_eps"], metadata_.get<double>(key("attention.layer_norm_rms_epsilon")));
    ASSIGN_OR_RETURN(const auto softcap, metadata_.find<double>(key("final_logit_softcapping")));
    if (softcap.value_or(0) != 0) text_["final_logit_softcapping"] = *softcap;

    std::int64_t width = 0;
    const bool has_width = metadata_.contains(key("embedding_length_per_layer_input")) ||
                           model_.find("per_layer_proj_norm.weight") != nullptr;
    if (has_width) {
      ASSIGN_OR_RETURN(width, size("embedding_length_per_layer_input", "per_layer_proj_norm.weight", 0));
    }
    text_["hidden_size_per_layer_input"] = width;
    text_["vocab_size_per_layer_input"] = extent("per_layer_token_embd.weight", 0).value_or(0);
    return {};
  }

  /// Returns which layers slide, from a bool per layer or the period of the full ones.
  Result<std::vector<bool>> sliding_pattern() const {
    const std::string name = key("attention.sliding_window_pattern");
    std::vector<bool> sliding(layer_count());
    if (metadata_.is_array(name)) {
      ASSIGN_OR_RETURN(const auto flags, per_layer("attention.sliding_window_pattern"));
      for (std::size_t i = 0; i < sliding.size(); ++i) sliding[i] = *flags[i] != 0;
    } else {
      ASSIGN_OR_RETURN(const std::int64_t period, metadata_.get<std::int64_t>(name));
      if (period < 1) return error(Errc::kMalformed, "{} is {}, wanted a period of at least 1", name, period);
      for (std::size_t i = 0; i < sliding.size(); ++i) sliding[i] = static_cast<std::int64_t>(i) % period < period - 1;
    }
    sliding.back() = false;  // as in config.cc, whatever the file says
    return sliding;
  }

  /// head_dim of full and of sliding layers, according to the metadata.
  Result<std::pair<std::int64_t, std::int64_t>> stated_head_dims() const {
    ASSIGN_OR_RETURN(const auto full, metadata_.get<std::int64_t>(key("attention.key_length")));
    ASSIGN_OR_RETURN(const auto sliding, stated("attention.key_length_swa"));
    ASSIGN_OR_RETURN(const auto full_value, stated("attention.value_length"));
    ASSIGN_OR_RETURN(const auto sliding_value, stated("attention.value_length_swa"));
    if (full_value.value_or(full) != full || sliding_value.value_or(sliding.value_or(full)) != sliding.value_or(full)) {
      return error(Errc::kUnsupported, "{} differs from key_length, wanted keys and values of one size",
                   key("attention.value_length"));
    }
    return std::pair(full, sliding.value_or(full));
  }

  struct Layer {
    bool slides = false;
    std::int64_t head_dim, heads, kv_heads, width;
  };

  Result<void> read_layers(bool assistant) {
    ASSIGN_OR_RETURN(const std::vector<bool> sliding, sliding_pattern());
    ASSIGN_OR_RETURN(const auto head_dims, stated_head_dims());
    ASSIGN_OR_RETURN(const auto shared, stated("attention.shared_kv_layers"));
    ASSIGN_OR_RETURN(const auto stated_heads, per_layer("attention.head_count"));
    ASSIGN_OR_RETURN(const auto stated_kv_heads, per_layer("attention.head_count_kv"));
    ASSIGN_OR_RETURN(const auto stated_widths, per_layer("feed_forward_length"));
    const std::int64_t first_shared =
        assistant ? 0 : layers_ - std::clamp<std::int64_t>(shared.value_or(0), 0, layers_);
    text_["num_kv_shared_layers"] = shared.value_or(0);

    std::vector<Layer> layers;
    std::optional<std::int64_t> owner[2];  // last layer of each kind that owns K/V: full, sliding
    std::optional<bool> k_eq_v;
    for (std::int64_t i = 0; i < layers_; ++i) {
      const auto at = static_cast<std::size_t>(i);
      const bool slides = sliding[at], owns = i < first_shared;
      const std::int64_t stated_head_dim = slides ? head_dims.second : head_dims.first;
      const std::string q_norm = tensor_of(i, "attn_q_norm"), q = tensor_of(i, "attn_q"), k = tensor_of(i, "attn_k");
      const std::string gate = tensor_of(i, "ffn_gate");

      Layer layer{};
      layer.slides = slides;
      layer.head_dim = extent(q_norm, 0).value_or(stated_head_dim);
      note(slides ? "attention.key_length_swa" : "attention.key_length", stated_head_dim, q_norm, layer.head_dim);
      const auto heads_in = [&](const std::string& tensor) -> std::optional<std::int64_t> {
        const std::optional<std::int64_t> rows = extent(tensor, 0);
        if (!rows || layer.head_dim < 1 || *rows % layer.head_dim != 0) return std::nullopt;
        return *rows / layer.head_dim;
      };
      ASSIGN_OR_RETURN(layer.heads, choose("attention.head_count", stated_heads[at], q, heads_in(q)));
      ASSIGN_OR_RETURN(layer.width, choose("feed_forward_length", stated_widths[at], gate, extent(gate, 0)));
      // A layer that reads another's K/V has that layer's heads; its own k, if any, is ignored.
      if (!assistant && !owns && owner[slides]) {
        layer.kv_heads = layers[static_cast<std::size_t>(*owner[slides])].kv_heads;
      } else {
        ASSIGN_OR_RETURN(layer.kv_heads, choose("attention.head_count_kv", stated_kv_heads[at], k, heads_in(k)));
      }
      if (layer.heads != (layers.empty() ? layer : layers.front()).heads) {
        return error(Errc::kUnsupported, "layer {} has {} heads, wanted {} as in layer 0", i, layer.heads,
                     layers.front().heads);
      }
      layers.push_back(layer);

      if (owns) owner[slides] = i;
      if (owns && !slides && model_.find(k) != nullptr) {
        const bool without_v = model_.find(tensor_of(i, "attn_v")) == nullptr;
        if (k_eq_v.value_or(without_v) != without_v) {
          return error(Errc::kUnsupported, "{} is {}, wanted all full layers alike", tensor_of(i, "attn_v"),
                       without_v ? "missing" : "there");
        }
        k_eq_v = without_v;
      }
    }
    text_["attention_k_eq_v"] = k_eq_v.value_or(false);
    return write_layers(layers, first_shared);
  }

  /// Writes the layers as in config.json: common values, and per-layer exceptions.
  Result<void> write_layers(const std::vector<Layer>& layers, std::int64_t first_shared) {
    const Layer& plain = layers.front();
    text_["num_attention_heads"] = plain.heads;
    text_["head_dim"] = plain.head_dim;
    text_["num_key_value_heads"] = plain.kv_heads;
    json types = json::array(), differing = json::object();
    for (std::size_t i = 0; i < layers.size(); ++i) {
      types.push_back(layers[i].slides ? "sliding_attention" : "full_attention");
      if (layers[i].head_dim != plain.head_dim || layers[i].kv_heads != plain.kv_heads) {
        differing[std::to_string(i)] = {{"head_dim", layers[i].head_dim}, {"num_key_value_heads", layers[i].kv_heads}};
      }
    }
    text_["layer_types"] = std::move(types);
    text_["per_layer_config"] = std::move(differing);

    // Either one width, or double width from the first shared layer on.
    const bool double_wide = first_shared > 0 && first_shared < layers_ && plain.width <= kWidthMax &&
                             layers.back().width == 2 * plain.width;
    for (std::int64_t i = 0; i < layers_; ++i) {
      const std::int64_t width = layers[static_cast<std::size_t>(i)].width,
                         wanted = double_wide && i >= first_shared ? 2 * plain.width : plain.width;
      if (width != wanted) {
        return error(Errc::kUnsupported, "{} of layer {} is {}, wanted {}", key("feed_forward_length"), i, width,
                     wanted);
      }
    }
    text_["intermediate_size"] = plain.width;
    text_["use_double_wide_mlp"] = double_wide;
    full_head_dim_ = layers.back().head_dim;
    const auto first_sliding = std::ranges::find(layers, true, &Layer::slides);
    if (first_sliding != layers.end()) sliding_head_dim_ = first_sliding->head_dim;
    return {};
  }

  Result<void> read_rope() {
    // Keys that change the angles in unsupported ways.
    ASSIGN_OR_RETURN(const auto scaling, metadata_.find<std::string_view>(key("rope.scaling.type")));
    if (scaling.value_or("none") != "none")
      return error(Errc::kUnsupported, "{} is {:?}, wanted none", key("rope.scaling.type"), scaling->substr(0, 80));
    for (const auto& [name, head_dim] : {std::pair("rope.dimension_count", full_head_dim_),
                                         std::pair("rope.dimension_count_swa", sliding_head_dim_)}) {
      ASSIGN_OR_RETURN(const auto count, stated(name));
      if (count && head_dim && *count != *head_dim)
        return error(Errc::kUnsupported, "{} is {}, wanted the whole head, {}", key(name), *count, *head_dim);
    }
    json& rope = text_["rope_parameters"];
    ASSIGN_OR_RETURN(const double theta, metadata_.get<double>(key("rope.freq_base")));
    ASSIGN_OR_RETURN(rope["full_attention"], full_rope(theta));
    if (sliding_head_dim_) {
      ASSIGN_OR_RETURN(const double sliding_theta, metadata_.get<double>(key("rope.freq_base_swa")));
      rope["sliding_attention"] = {{"rope_type", "default"}, {"rope_theta", sliding_theta}};
    }
    return {};
  }

  /// rope_freqs.weight divides the frequencies of the full layers: the first ones by one common factor, the rest by so
  /// much that they do not rotate.
  Result<json> full_rope(double theta) const {
    constexpr const char* kName = "rope_freqs.weight";
    const TensorEntry* const tensor = model_.find(kName);
    // ik_llama.cpp's converter omits rope_freqs.weight; every published assistant has 0.25.
    if (tensor == nullptr && prefix_ == "gemma4_mtp.")
      return json{{"rope_type", "proportional"}, {"rope_theta", theta}, {"partial_rotary_factor", 0.25}};
    const std::int64_t pairs = *full_head_dim_ / 2;
    if (tensor == nullptr) return error(Errc::kNotFound, "tensor {} is missing, wanted {} elements", kName, pairs);
    if (tensor->element_count() != pairs)
      return error(Errc::kMismatch, "tensor {} has {} elements, wanted {}", kName, tensor->element_count(), pairs);
    std::vector<float> divisors(static_cast<std::size_t>(pairs));
    RETURN_IF_ERROR(read_f32(*tensor, divisors));
    const float factor = divisors.empty() ? 1 : divisors.front();
    const auto still = std::ranges::find_if(divisors, [=](float divisor) { return divisor != factor; });
    const bool two_parts = std::all_of(still, divisors.end(), [](float divisor) { return divisor >= kNoRotation; });
    if (!two_parts || !(factor > 0 && factor < kNoRotation)) {
      return error(Errc::kUnsupported, "tensor {} holds other values, wanted one number, then only numbers from {} on",
                   kName, kNoRotation);
    }
    const auto rotating = static_cast<double>(still - divisors.begin()), all = static_cast<double>(*full_head_dim_);
    double part = 2 * rotating / all;
    if (part * all / 2 < rotating) part = std::nextafter(part, 1.0);  // so that rope.cc gets the same number of pairs
    return json{
        {"rope_type", "proportional"}, {"rope_theta", theta}, {"partial_rotary_factor", part}, {"factor", factor}};
  }

  Result<void> read_experts() {
    const std::string router = tensor_of(0, "ffn_gate_inp"), down = tensor_of(0, "ffn_down_exps");
    ASSIGN_OR_RETURN(const auto given, stated("expert_count"));
    const bool has_experts = given.value_or(0) > 0 || model_.find(router) != nullptr;
    text_["enable_moe_block"] = has_experts;
    if (!has_experts) return {};
    ASSIGN_OR_RETURN(text_["num_experts"], size("expert_count", router, 0));
    ASSIGN_OR_RETURN(text_["top_k_experts"], metadata_.get<std::int64_t>(key("expert_used_count")));
    ASSIGN_OR_RETURN(text_["moe_intermediate_size"], size("expert_feed_forward_length", down, 2));
    return {};
  }

  Result<void> read_assistant(json& outer) {
    ASSIGN_OR_RETURN(outer["backbone_hidden_size"], size("embedding_length_out", name_of("post_projection.weight"), 0));
    const std::optional<std::int64_t> centroids = extent(name_of("masked_embedding.centroids.weight"), 0);
    const bool ordered = centroids && !name_of("masked_embedding.token_ordering").empty();
    outer["use_ordered_embeddings"] = ordered;
    if (!ordered) return {};
    ASSIGN_OR_RETURN(auto top_k, stated("masked_embedding.top_k"));
    if (!top_k) {
      ASSIGN_OR_RETURN(top_k, stated("centroid_top_k"));
    }
    outer["num_centroids"] = *centroids;
    outer["centroid_intermediate_top_k"] = top_k.value_or(std::min(kTopCentroids, *centroids));
    return {};
  }

  const GgufModel& model_;
  const GgufMetadata& metadata_;
  std::string prefix_;  // of the keys: the architecture and a dot
  json text_;
  std::vector<std::string> notes_;
  std::set<std::string> noted_;
  std::int64_t layers_ = 0;
  std::optional<std::int64_t> full_head_dim_, sliding_head_dim_;
};

/// Checks a token id of the metadata.
Result<TokenId> to_token_id(const GgufMetadata& metadata, std::string_view key, std::int64_t id) {
  if (0 <= id && id <= std::numeric_limits<TokenId>::max()) return static_cast<TokenId>(id);
  return file_error(Errc::kMalformed, metadata.file(), "{} is {}, wanted a token id", key, id);
}

Result<std::vector<TokenId>> eos_token_ids(const GgufMetadata& metadata) {
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
  // The file has room for one or two end tokens; the others are found by their texts.
  ASSIGN_OR_RETURN(const auto tokens, metadata.find<std::vector<std::string_view>>("tokenizer.ggml.tokens"));
  if (!tokens) return ids;
  for (const std::string_view end : {"<eos>", "<turn|>", "<|tool_response>"}) {
    if (const auto at = std::ranges::find(*tokens, end); at != tokens->end())
      add(static_cast<TokenId>(at - tokens->begin()));
  }
  return ids;
}

}  // namespace

Result<ModelText> gguf_config(const GgufModel& model) { return Translator(model).translate(); }

Result<ModelText> gguf_generation_config(const GgufMetadata& metadata) {
  json config = json::object();
  ASSIGN_OR_RETURN(const std::vector<TokenId> ends, eos_token_ids(metadata));
  if (!ends.empty()) config["eos_token_id"] = ends;
  constexpr std::string_view kSuppressed = "tokenizer.ggml.suppress_tokens";
  ASSIGN_OR_RETURN(const auto suppressed, metadata.find<std::vector<std::int64_t>>(kSuppressed));
  for (const std::int64_t id : suppressed.value_or(std::vector<std::int64_t>())) {
    ASSIGN_OR_RETURN(const TokenId token, to_token_id(metadata, kSuppressed, id));
    config["suppress_tokens"].push_back(token);
  }
  for (const auto& [to, from] :
       {std::pair("temperature", "general.sampling.temp"), {"top_p", "general.sampling.top_p"}}) {
    ASSIGN_OR_RETURN(const auto advised, metadata.find<double>(from));
    if (advised) config[to] = *advised;
  }
  ASSIGN_OR_RETURN(const auto top_k, metadata.find<std::int64_t>("general.sampling.top_k"));
  if (top_k) config["top_k"] = *top_k;
  return ModelText{config.dump(2), metadata.file().string()};
}

}  // namespace outrider
