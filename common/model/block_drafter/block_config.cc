#include "common/model/block_drafter/block_config.h"

#include <algorithm>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/base/json_fields.h"
#include "common/model/gemma4/config_fields.h"

namespace outrider {
namespace {

using nlohmann::json;

// Bounds beyond any plausible drafter, as for text models.
constexpr std::int64_t kVocabMax = 1 << 24, kWidthMax = 1 << 20, kHeadsMax = 1 << 10, kHeadDimMax = 1 << 13;
constexpr std::int64_t kLayersMax = 64, kBlockMax = 64, kHiddenLayersMax = 32;

// DeepSpec's classes; its DFlash is a DSpark without a Markov head.
constexpr const char* kDeepSpecBlock = "Gemma4DSparkModel";
constexpr const char* kDeepSpecEagle3 = "Gemma4Eagle3Model";

/// Reads layer numbers, counted from `first`.
std::vector<int> read_hidden_layers(const JsonFields& keys, const char* key, std::int64_t first) {
  std::vector<int> layers;
  const json& list = keys.array(key);
  for (const json& id : list) {
    const bool sound = id.is_number_integer() && first <= id && id < kLayersMax * 16;
    const int layer = sound ? static_cast<int>(id.get<std::int64_t>() - first) : -1;
    if (!sound || std::ranges::count(layers, layer) > 0) {
      keys.fail(Errc::kMalformed, key, list, fmt::format("distinct layers from {} on", first));
      return {0};
    }
    layers.push_back(layer);
  }
  if (layers.empty() || std::ssize(layers) > kHiddenLayersMax)
    keys.fail(Errc::kMalformed, key, list, fmt::format("1 to {} layers", kHiddenLayersMax));
  return layers;
}

double read_rope_theta(const JsonFields& text) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (text.find(key) == nullptr) continue;
    const JsonFields both = text.object(key);
    // By kind of layer; speculators uses the sliding layers' for all.
    const bool nested = both.find("sliding_attention") != nullptr;
    const JsonFields rope = nested ? both.object("sliding_attention") : both;
    rope.choice("rope_type", "default", {"default"});
    if (rope.number("partial_rotary_factor", 1, 0, 1) < 1) rope.wrong("partial_rotary_factor", "1");
    if (rope.find("rope_theta") != nullptr) return rope.number("rope_theta", std::nullopt, 1, 1e12);
  }
  return text.number("rope_theta", 1e4, 1, 1e12);
}

/// Reads the layers. Defaults are those of Qwen3Config and LlamaConfig, since speculators omits default values.
void read_layers(const JsonFields& text, BlockConfig* config) {
  config->qk_norm = !config->eagle3 || text.choice("model_type", "qwen3", {"qwen3", "llama"}) == "qwen3";
  if (!config->eagle3) text.choice("model_type", "qwen3", {"qwen3"});
  const bool llama = !config->qk_norm;
  config->vocab_size = text.integer("vocab_size", llama ? 32000 : 151936, 1, kVocabMax);
  config->hidden_size = text.integer("hidden_size", 4096, 2, kWidthMax);
  config->intermediate_size = text.integer("intermediate_size", llama ? 11008 : 22016, 1, kWidthMax);
  const std::int64_t heads = config->num_attention_heads = text.integer("num_attention_heads", 32, 1, kHeadsMax);
  config->num_key_value_heads = text.integer("num_key_value_heads", llama ? heads : 32, 1, kHeadsMax);
  const std::int64_t head_dim = llama ? std::max<std::int64_t>(2, config->hidden_size / heads) : 128;
  config->head_dim = text.integer("head_dim", head_dim, 2, kHeadDimMax);
  config->rms_norm_eps = static_cast<float>(text.number("rms_norm_eps", 1e-6, 1e-12, 1));
  config->rope.rope_theta = read_rope_theta(text);
  config->silu = text.choice("hidden_act", "silu", {"silu", "gelu_pytorch_tanh"}) == "silu";
  text.only("attention_bias", false);
  text.only("mlp_bias", false);
  if (config->num_attention_heads % config->num_key_value_heads != 0)
    text.fail(Errc::kMalformed, "num_attention_heads", config->num_attention_heads,
              fmt::format("a multiple of num_key_value_heads = {}", config->num_key_value_heads));
  if (config->head_dim % 2 != 0) text.fail(Errc::kMalformed, "head_dim", config->head_dim, "an even number");

  const std::int64_t layers = text.integer("num_hidden_layers", 32, 1, kLayersMax);
  config->sliding.assign(static_cast<std::size_t>(layers), false);
  if (!text.boolean("use_sliding_window", false)) return;
  config->sliding_window = text.integer("sliding_window", 4096, 1, 1 << 20);
  const json& types = text.array("layer_types");
  if (std::ssize(types) != layers)
    return text.fail(Errc::kMalformed, "layer_types", types, fmt::format("num_hidden_layers = {} of them", layers));
  for (std::size_t i = 0; i < types.size(); ++i) config->sliding[i] = types[i] == "sliding_attention";
}

/// Reads Gemma's layers, which must be dense, with full attention and K/V of their own.
void read_gemma_layers(const JsonFields& top, FirstError& first_error, BlockConfig* config) {
  top.only("enable_moe_block", false);
  const TextConfig text = read_text_fields(top, "gemma4_text", /*assistant=*/false, first_error);
  if (text.hidden_size_per_layer_input > 0) top.wrong("hidden_size_per_layer_input", "0");
  if (text.first_shared < text.num_hidden_layers) top.wrong("num_kv_shared_layers", "0");
  if (std::ranges::count(text.layers, AttentionKind::kSliding, &LayerConfig::kind) > 0)
    top.fail(Errc::kUnsupported, "layer_types", "sliding_attention", "full_attention alone");
  const LayerConfig& layer = text.layers.front();
  config->gemma = config->qk_norm = true;
  config->k_eq_v = layer.k_eq_v;
  config->vocab_size = text.vocab_size;
  config->hidden_size = text.hidden_size;
  config->intermediate_size = text.intermediate_size;
  config->num_attention_heads = text.num_attention_heads;
  config->num_key_value_heads = layer.num_key_value_heads;
  config->head_dim = layer.head_dim;
  config->rms_norm_eps = text.rms_norm_eps;
  config->rope = text.full_rope;
  config->final_logit_softcapping = text.final_logit_softcapping;
  config->sliding.assign(text.layers.size(), false);
}

void read_markov_head(const JsonFields& top, std::int64_t rank, BlockConfig* config) {
  config->markov_rank = top.integer("markov_rank", rank, 0, kWidthMax);
  if (config->markov_rank > 0) top.choice("markov_head_type", "vanilla", {"vanilla"});
}

void read_eagle3(const JsonFields& top, BlockConfig* config) {
  if (std::ranges::count(config->sliding, true) > 0)
    top.object("transformer_layer_config").wrong("use_sliding_window", "false");
  if (top.integer("target_hidden_size", config->hidden_size, 1, kWidthMax) != config->hidden_size)
    top.wrong("target_hidden_size", fmt::format("hidden_size = {}", config->hidden_size));
  config->norm_before_residual = top.boolean("norm_before_residual", false);
  config->norm_before_fc = top.boolean("norm_before_fc", false);
  config->fc_norm = top.boolean("fc_norm", false);
  config->norm_output = top.boolean("norm_output", false);
  if (config->norm_before_fc && config->fc_norm) top.wrong("fc_norm", "false with norm_before_fc");
  if (top.find("eagle_aux_hidden_state_layer_ids") != nullptr)
    config->hidden_layers = read_hidden_layers(top, "eagle_aux_hidden_state_layer_ids", 1);
}

void read_speculators(const JsonFields& top, BlockConfig* config) {
  const std::string type = top.choice("speculators_model_type", std::nullopt, {"dflash", "dspark", "eagle3"});
  const bool dspark = type == "dspark";
  config->eagle3 = type == "eagle3";
  read_layers(top.object("transformer_layer_config"), config);
  constexpr std::int64_t kDrafted = 32000;  // speculators' default
  const bool may_be_default = kDrafted <= config->vocab_size;
  config->draft_vocab_size =
      top.integer("draft_vocab_size", may_be_default ? std::optional(kDrafted) : std::nullopt, 1, config->vocab_size);
  if (config->eagle3) return read_eagle3(top, config);
  config->block_size = static_cast<std::int32_t>(top.integer("block_size", 8, 2, kBlockMax));
  config->drafts_from_anchor = top.boolean("sample_from_anchor", dspark);
  config->sliding_causal = !top.boolean("sliding_window_non_causal", false);
  config->mask_token_id = static_cast<TokenId>(top.integer("mask_token_id", std::nullopt, 0, config->vocab_size - 1));
  // An index into Hugging Face's hidden states: 0 is the embedding, which is no layer's output.
  config->hidden_layers = read_hidden_layers(top, "aux_hidden_state_layer_ids", 1);
  if (dspark) read_markov_head(top, 256, config);
}

void read_dflash(const JsonFields& top, BlockConfig* config) {
  const JsonFields dflash = top.object("dflash_config");
  read_layers(top, config);
  config->scales_embedding = true;
  config->draft_vocab_size = config->vocab_size;
  const JsonFields& with_size = top.find("block_size") != nullptr ? top : dflash;
  config->block_size = static_cast<std::int32_t>(with_size.integer("block_size", std::nullopt, 2, kBlockMax));
  config->mask_token_id =
      static_cast<TokenId>(dflash.integer("mask_token_id", std::nullopt, 0, config->vocab_size - 1));
  config->hidden_layers = read_hidden_layers(dflash, "target_layer_ids", 0);
  if (top.find("final_logit_softcapping") != nullptr)
    config->final_logit_softcapping = static_cast<float>(top.number("final_logit_softcapping", 0, 1e-3, 1e6));
}

/// Returns the only class of a checkpoint; empty: another number of them.
std::string architecture(const json& config) {
  const json& all = member(config, "architectures");
  return all.is_array() && all.size() == 1 && all[0].is_string() ? all[0].get<std::string>() : "";
}

void read_deepspec(const JsonFields& top, FirstError& first_error, BlockConfig* config) {
  const std::string type = architecture(top.raw());
  config->eagle3 = type == kDeepSpecEagle3;
  if (!config->eagle3 && type != kDeepSpecBlock)
    return top.fail(Errc::kUnsupported, "architectures", type,
                    fmt::format("{} or {}", kDeepSpecBlock, kDeepSpecEagle3));
  read_gemma_layers(top, first_error, config);
  config->scales_embedding = true;
  config->draft_vocab_size = config->vocab_size;
  config->num_target_layers = top.integer("num_target_layers", std::nullopt, 1, kLayersMax * 16);
  config->hidden_layers = read_hidden_layers(top, "target_layer_ids", 0);
  if (config->eagle3) {
    // Each of its layers has the embedding beside its input, the speculators' first one alone.
    if (config->sliding.size() > 1) top.wrong("num_hidden_layers", "1 in EAGLE-3");
    return;
  }
  config->block_size = static_cast<std::int32_t>(top.integer("block_size", std::nullopt, 2, kBlockMax));
  config->drafts_from_anchor = true;
  config->mask_token_id = static_cast<TokenId>(top.integer("mask_token_id", std::nullopt, 0, config->vocab_size - 1));
  read_markov_head(top, 0, config);
}

Result<void> check_target(const BlockConfig& config, const TextConfig& target, const std::string& name) {
  const auto compare = [&](const char* what, std::int64_t seen, std::int64_t wanted) -> Result<void> {
    if (seen == wanted) return {};
    return Error(Errc::kMismatch, "{}: {} is {}, wanted the target's {}", name, what, seen, wanted);
  };
  RETURN_IF_ERROR(compare("vocab_size", config.vocab_size, target.vocab_size));
  RETURN_IF_ERROR(compare("hidden_size", config.hidden_size, target.hidden_size));
  if (config.num_target_layers > 0)
    RETURN_IF_ERROR(compare("num_target_layers", config.num_target_layers, target.num_hidden_layers));
  // Hugging Face's list has the normed output of the last layer.
  const int highest = std::ranges::max(config.hidden_layers);
  if (highest + 1 < target.num_hidden_layers) return {};
  return Error(Errc::kMismatch, "{}: the output of layer {} is wanted, counted from 0, of a target with {} layers",
               name, highest, target.num_hidden_layers);
}

/// Returns null without a config.json.
json config_of(const std::filesystem::path& model) {
  const auto files = ModelFiles::open(model);
  if (!files) return {};
  const auto text = files->config_json();
  return text && *text ? parse_json((*text)->text) : json();
}

}  // namespace

bool is_block_drafter(const std::filesystem::path& model) {
  const json config = config_of(model);
  constexpr const char* kKeys[] = {"speculators_model_type", "dflash_config", "target_layer_ids"};
  return std::ranges::any_of(kKeys, [&](const char* key) { return config.contains(key); });
}

bool is_eagle3_drafter(const std::filesystem::path& model) {
  const json config = config_of(model);
  return member(config, "speculators_model_type") == "eagle3" || architecture(config) == kDeepSpecEagle3;
}

Result<BlockConfig> parse_block_config(std::string_view json_text, std::string_view file) {
  return read_json_object(json_text, file, [](const JsonFields& top, FirstError& first_error) {
    BlockConfig config{};
    if (top.find("speculators_model_type") != nullptr) {
      read_speculators(top, &config);
    } else if (top.find("dflash_config") != nullptr) {
      read_dflash(top, &config);
    } else if (top.find("target_layer_ids") != nullptr) {
      read_deepspec(top, first_error, &config);
    } else {
      top.wrong("speculators_model_type",
                "a DSpark, DFlash or EAGLE-3 drafter in the format of speculators, dflash_config or target_layer_ids");
    }
    if (config.hidden_size % 2 != 0) top.fail(Errc::kMalformed, "hidden_size", config.hidden_size, "an even number");
    return config;
  });
}

Result<BlockConfig> load_block_config(const ModelFiles& files, const TextConfig& target) {
  ASSIGN_OR_RETURN(const ModelText text, files.need_config_json());
  ASSIGN_OR_RETURN(BlockConfig config, parse_block_config(text.text, text.name));
  const auto layers = static_cast<int>(target.num_hidden_layers);
  // The default of speculators and of vLLM, hidden states 2, layers / 2 and layers - 3.
  if (config.hidden_layers.empty()) {
    if (layers < 7) {
      return Error(Errc::kMismatch,
                   "{}: eagle_aux_hidden_state_layer_ids is missing, wanted with a target of {} layers", text.name,
                   layers);
    }
    config.hidden_layers = {1, layers / 2 - 1, layers - 4};
  }
  RETURN_IF_ERROR(check_target(config, target, text.name));
  return config;
}

}  // namespace outrider
