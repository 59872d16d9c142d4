#include "common/model/gemma4/config.h"

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "common/model/gemma4/generation_config.h"
#include "tests/support/model_at.h"
#include "tests/support/temporary_dir.h"

namespace outrider {
namespace {

namespace fs = std::filesystem;

const fs::path kSource = OUTRIDER_SOURCE_DIR;
constexpr AttentionKind kSliding = AttentionKind::kSliding, kFull = AttentionKind::kFull;

/// Small text keys that are valid by themselves, followed by `more`; a later key wins.
std::string text_keys(std::string_view more = "") {
  std::string keys = R"("vocab_size":512,"hidden_size":64,"intermediate_size":96,)"
                     R"("num_hidden_layers":6,"num_attention_heads":4,"num_key_value_heads":2,)"
                     R"("head_dim":16,"sliding_window":8,"hidden_size_per_layer_input":0)";
  if (!more.empty()) keys += fmt::format(",{}", more);
  return keys;
}
std::string backbone(std::string_view more = "", const char* type = "gemma4") {
  return fmt::format(R"({{"model_type":"{0}","text_config":{{"model_type":"{0}_text",{1}}}}})", type, text_keys(more));
}
std::string assistant(std::string_view text_more = "", std::string_view top_more = "") {
  return fmt::format(R"({{"model_type":"gemma4_assistant","backbone_hidden_size":64{}{},"text_config":{{{}}}}})",
                     top_more.empty() ? "" : ",", top_more, text_keys(text_more));
}

TextConfig parsed(std::string_view json) {
  Result<TextConfig> config = parse_text_config(json, "config.json");
  if (config) return std::move(config).value();
  ADD_FAILURE() << config.error().message;
  return {};
}

std::vector<std::int64_t> head_dims(const TextConfig& config) {
  std::vector<std::int64_t> out;
  for (const LayerConfig& layer : config.layers) out.push_back(layer.head_dim);
  return out;
}
std::vector<std::int64_t> kv_heads(const TextConfig& config) {
  std::vector<std::int64_t> out;
  for (const LayerConfig& layer : config.layers) out.push_back(layer.num_key_value_heads);
  return out;
}
std::vector<int> donors(const TextConfig& config) {
  std::vector<int> out;
  for (const LayerConfig& layer : config.layers) out.push_back(layer.donor);
  return out;
}
using Sizes = std::vector<std::int64_t>;
using Layers = std::vector<int>;

TEST(TextConfig, ReadsNanoBackbone) {
  const Result<TextConfig> loaded = load_text_config(model_at(kSource / "models/nano/backbone"));
  ASSERT_TRUE(loaded) << loaded.error().message;
  const TextConfig& c = *loaded;
  EXPECT_EQ(c.model_type, "gemma4_text");
  EXPECT_EQ(c.vocab_size, 8192);
  EXPECT_EQ(c.hidden_size, 384);
  EXPECT_EQ(c.num_hidden_layers, 12);
  EXPECT_EQ(c.num_attention_heads, 6);
  EXPECT_EQ(c.sliding_window, 128);
  EXPECT_EQ(c.rms_norm_eps, 1e-6f);
  EXPECT_EQ(c.final_logit_softcapping, 30.0f);
  EXPECT_EQ(c.hidden_size_per_layer_input, 32);
  EXPECT_EQ(c.vocab_size_per_layer_input, 8192);
  EXPECT_FALSE(c.enable_moe_block);
  EXPECT_EQ(c.max_position_embeddings, 8192);
  EXPECT_EQ(c.sliding_rope.rope_theta, 1e4);
  EXPECT_FALSE(c.sliding_rope.proportional);
  EXPECT_EQ(c.full_rope.rope_theta, 1e6);
  EXPECT_TRUE(c.full_rope.proportional);
  EXPECT_EQ(c.full_rope.partial_rotary_factor, 0.25);
  // "05" and "11" are layers 5 and 11.
  EXPECT_EQ(head_dims(c), (Sizes{64, 64, 64, 64, 64, 128, 64, 64, 64, 64, 64, 128}));
  EXPECT_EQ(c.first_shared, 8);
  EXPECT_EQ(donors(c), (Layers{0, 1, 2, 3, 4, 5, 6, 7, 7, 7, 7, 5}));
  EXPECT_EQ(c.last_owner(kSliding), 7);
  EXPECT_EQ(c.last_owner(kFull), 5);
  EXPECT_TRUE(c.layers[7].owns_kv);
  EXPECT_FALSE(c.layers[8].owns_kv);
}

TEST(TextConfig, ReadsE4bGolden) {
  const Result<TextConfig> c = load_text_config(model_at(kSource / "tests/goldens/e4b/backbone"));
  ASSERT_TRUE(c) << c.error().message;
  EXPECT_EQ(head_dims(*c), (Sizes{16, 16, 16, 32, 16, 16, 16, 32}));
  EXPECT_EQ(donors(*c), (Layers{0, 1, 2, 3, 4, 4, 4, 3}));
  EXPECT_EQ(c->layers[6].intermediate_size, 96);
}

TEST(AssistantConfig, ReadsRealFiles) {
  const Result<AssistantConfig> nano = load_assistant_config(model_at(kSource / "models/nano/assistant"));
  ASSERT_TRUE(nano) << nano.error().message;
  EXPECT_EQ(nano->backbone_hidden_size, 384);
  EXPECT_TRUE(nano->use_ordered_embeddings);
  EXPECT_EQ(nano->num_centroids, 256);
  EXPECT_EQ(nano->centroid_intermediate_top_k, 16);
  EXPECT_EQ(nano->text.final_logit_softcapping, 0.0f);
  EXPECT_EQ(head_dims(nano->text), (Sizes{64, 64, 64, 128}));
  EXPECT_EQ(donors(nano->text), Layers(4, kDonorOutside));
  EXPECT_EQ(nano->text.first_shared, 0);
  EXPECT_EQ(nano->text.last_owner(kFull), -1);

  const Result<AssistantConfig> e4b = load_assistant_config(model_at(kSource / "tests/goldens/e4b/assistant"));
  ASSERT_TRUE(e4b) << e4b.error().message;
  EXPECT_EQ(e4b->text.hidden_size, 32);
}

TEST(TextConfig, BothSpellingsGiveTheSameLayers) {
  const TextConfig older =
      parsed(backbone(R"("global_head_dim":32,"attention_k_eq_v":true,"num_global_key_value_heads":1)"));
  const TextConfig newer =
      parsed(backbone(R"("attention_k_eq_v":true,"per_layer_config":{"5":{"head_dim":32,"num_key_value_heads":1}})"));
  for (const TextConfig& c : {older, newer}) {
    EXPECT_EQ(head_dims(c), (Sizes{16, 16, 16, 16, 16, 32}));
    EXPECT_EQ(kv_heads(c), (Sizes{2, 2, 2, 2, 2, 1}));
    EXPECT_EQ(donors(c), (Layers{0, 1, 2, 3, 4, 5}));
    EXPECT_TRUE(c.layers[5].k_eq_v);
    EXPECT_FALSE(c.layers[4].k_eq_v);
  }
}

struct ShapeCase {
  const char* name;
  const char* keys;
  std::int64_t full_head_dim, full_kv_heads;
};

TEST(TextConfig, FullLayersTakeTheirShapeFromTheRightKeys) {
  for (const ShapeCase& c : {
           ShapeCase{"absent means 512", R"("per_layer":0)", 512, 2},
           {"null global_head_dim means 512", R"("global_head_dim":null)", 512, 2},
           {"older", R"("global_head_dim":32)", 32, 2},
           {"global kv heads need attention_k_eq_v", R"("num_global_key_value_heads":1)", 512, 2},
           {"attention_k_eq_v", R"("num_global_key_value_heads":1,"attention_k_eq_v":true)", 512, 1},
           {"attention_k_eq_v, null", R"("num_global_key_value_heads":null,"attention_k_eq_v":true)", 512, 2},
           {"an empty per_layer_config hides the global keys",
            R"("per_layer_config":{},"global_head_dim":32,"attention_k_eq_v":true,"num_global_key_value_heads":1)", 16,
            2},
           {"so does null", R"("per_layer_config":null,"global_head_dim":32)", 16, 2},
           {"entries hold what differs", R"("per_layer_config":{"5":{"head_dim":32}})", 32, 2},
           {"entries are final", R"("per_layer_config":{"5":{"num_key_value_heads":4}})", 16, 4},
           {"keys may be padded", R"("per_layer_config":{"0005":{"head_dim":32}})", 32, 2},
       }) {
    SCOPED_TRACE(c.name);
    const TextConfig config = parsed(backbone(c.keys));
    ASSERT_EQ(config.layers.size(), 6u);
    EXPECT_EQ(config.layers[5].head_dim, c.full_head_dim);
    EXPECT_EQ(config.layers[5].num_key_value_heads, c.full_kv_heads);
    EXPECT_EQ(config.layers[4].head_dim, 16);
    EXPECT_EQ(config.layers[4].num_key_value_heads, 2);
  }
}

TEST(TextConfig, TextOnlyExportHasTheKeysOnTop) {
  const TextConfig c =
      parsed(fmt::format(R"({{"model_type":"gemma4_text",{}}})", text_keys(R"("per_layer_config":{})")));
  EXPECT_EQ(c.hidden_size, 64);
  EXPECT_EQ(c.layers.size(), 6u);
}

TEST(TextConfig, DefaultsAreHuggingFaces) {
  const TextConfig c = parsed(R"({"model_type":"gemma4","text_config":{}})");
  EXPECT_EQ(c.model_type, "gemma4_text");
  EXPECT_EQ(c.vocab_size, 262144);
  EXPECT_EQ(c.hidden_size, 2304);
  EXPECT_EQ(c.intermediate_size, 9216);
  EXPECT_EQ(c.num_hidden_layers, 30);
  EXPECT_EQ(c.num_attention_heads, 8);
  EXPECT_EQ(c.sliding_window, 512);
  EXPECT_EQ(c.rms_norm_eps, 1e-6f);
  EXPECT_EQ(c.final_logit_softcapping, 0.0f);
  EXPECT_EQ(c.hidden_size_per_layer_input, 256);
  EXPECT_EQ(c.vocab_size_per_layer_input, 262144);
  EXPECT_EQ(c.max_position_embeddings, 131072);
  EXPECT_EQ(c.full_rope.partial_rotary_factor, 0.25);
  for (int i = 0; i < 30; ++i) {
    const LayerConfig& layer = c.layers[static_cast<std::size_t>(i)];
    EXPECT_EQ(layer.kind == kFull, i % 6 == 5) << i;
    EXPECT_EQ(layer.head_dim, i % 6 == 5 ? 512 : 256) << i;
    EXPECT_EQ(layer.num_key_value_heads, 4) << i;
  }
}

TEST(TextConfig, UnifiedTypeHasItsOwnDefaults) {
  const TextConfig c = parsed(R"({"model_type":"gemma4_unified","text_config":{}})");
  EXPECT_EQ(c.model_type, "gemma4_unified_text");
  EXPECT_EQ(c.hidden_size_per_layer_input, 0);
  EXPECT_EQ(c.sliding_window, 1024);
  EXPECT_EQ(c.max_position_embeddings, 262144);
}

TEST(TextConfig, LastLayerIsFullWhateverLayerTypesSays) {
  const TextConfig c = parsed(backbone(R"("num_hidden_layers":3,"layer_types":["full_attention",)"
                                       R"("sliding_attention","sliding_attention"])"));
  EXPECT_EQ(c.layers[0].kind, kFull);
  EXPECT_EQ(c.layers[1].kind, kSliding);
  EXPECT_EQ(c.layers[2].kind, kFull);
  EXPECT_EQ(c.layers[2].head_dim, 512);
  EXPECT_EQ(parsed(backbone(R"("num_hidden_layers":4)")).layers[3].kind, kFull);
}

TEST(TextConfig, DoubleWideMlpIsForSharedLayersOnly) {
  constexpr const char* kTypes =
      R"("layer_types":["sliding_attention","full_attention","sliding_attention",)"
      R"("sliding_attention","sliding_attention","full_attention"],"use_double_wide_mlp":true)";
  const TextConfig shared = parsed(backbone(fmt::format(R"({},"num_kv_shared_layers":3)", kTypes)));
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(shared.layers[static_cast<std::size_t>(i)].intermediate_size, i < 3 ? 96 : 192) << i;
  }
  EXPECT_EQ(donors(shared), (Layers{0, 1, 2, 2, 2, 1}));
  for (const LayerConfig& layer : parsed(backbone(kTypes)).layers) {
    EXPECT_EQ(layer.intermediate_size, 96);
  }
}

TEST(TextConfig, ReadsMoeKeys) {
  const TextConfig c =
      parsed(backbone(R"("enable_moe_block":true,"num_experts":8,"top_k_experts":3,"moe_intermediate_size":24)"));
  EXPECT_TRUE(c.enable_moe_block);
  EXPECT_EQ(c.num_experts, 8);
  EXPECT_EQ(c.top_k_experts, 3);
  EXPECT_EQ(c.moe_intermediate_size, 24);
  EXPECT_EQ(parsed(backbone(R"("num_experts":8,"top_k_experts":null)")).num_experts, 0);
}

TEST(TextConfig, ReadsRotaryParameters) {
  const TextConfig c = parsed(
      backbone(R"("rope_parameters":{"sliding_attention":{"rope_theta":5e3,"partial_rotary_factor":0.5,"factor":2},)"
               R"("full_attention":{"rope_type":"proportional","rope_theta":100000,"factor":8.0}})"));
  EXPECT_EQ(c.sliding_rope.rope_theta, 5e3);
  EXPECT_FALSE(c.sliding_rope.proportional);
  EXPECT_EQ(c.sliding_rope.partial_rotary_factor, 1.0);
  EXPECT_EQ(c.sliding_rope.factor, 1.0);
  EXPECT_EQ(c.full_rope.rope_theta, 1e5);
  EXPECT_TRUE(c.full_rope.proportional);
  EXPECT_EQ(c.full_rope.partial_rotary_factor, 1.0);
  EXPECT_EQ(c.full_rope.factor, 8.0);
  EXPECT_EQ(parsed(backbone(R"("rope_parameters":null)")).full_rope.rope_theta, 1e6);
}

TEST(TextConfig, NullPerLayerWidthSwitchesPerLayerEmbeddingsOff) {
  EXPECT_EQ(parsed(backbone(R"("hidden_size_per_layer_input":null)")).hidden_size_per_layer_input, 0);
}

TEST(TextConfig, VisionBlocksAreNoObstacle) {
  parsed(backbone(R"("use_bidirectional_attention":"vision")"));
  parsed(backbone(R"("use_bidirectional_attention":null)"));
}

// As quantisers write them for a mixture of experts, in a config.json of more than a megabyte.
TEST(TextConfig, SettingsForEachMatrixAreNoObstacle) {
  parsed(backbone(fmt::format(R"("extra_config":"{}")", std::string(2'000'000, ' '))));
}

struct BadConfig {
  std::string json;
  Errc code;
  const char* message_part;
};

void expect_error(const Error& error, const BadConfig& bad) {
  EXPECT_EQ(error.code, bad.code) << error.message;
  EXPECT_TRUE(error.message.starts_with("dir/config.json: ")) << error.message;
  EXPECT_NE(error.message.find(bad.message_part), std::string::npos) << error.message;
  EXPECT_EQ(error.message.find('\n'), std::string::npos) << error.message;
}

const std::vector<BadConfig> kBadConfigs = {
    {"", Errc::kMalformed, "not JSON at line 1, column 1 (unexpected end), wanted a JSON object"},
    {"{\"a\": 1,\n \"b\": 2,\n}", Errc::kMalformed, "not JSON at line 3, column 1, wanted a JSON object"},
    {"{", Errc::kMalformed, "not JSON"},
    {"{\"a\xff\":1}", Errc::kMalformed, "not JSON"},
    {"[1,2]", Errc::kMalformed, "is an array of 2, wanted a JSON object"},
    {std::string(500, '['), Errc::kMalformed, "not JSON"},
    {std::string(500'000, '['), Errc::kMalformed, "nests deeper than 512 levels"},
    {std::string(500'000, '[') + std::string(500'000, ']'), Errc::kMalformed, "nests deeper than 512 levels"},
    {std::string(20'000'000, ' '), Errc::kOutOfRange, "20000000 bytes long"},
    {"{}", Errc::kMalformed, "model_type is missing, wanted gemma4 or"},
    {R"({"model_type":7})", Errc::kMalformed, "model_type is 7"},
    {R"({"model_type":"llama"})", Errc::kUnsupported, "model_type is \"llama\", wanted gemma4"},
    {assistant(), Errc::kUnsupported, "model_type is \"gemma4_assistant\""},
    {R"({"model_type":"gemma4"})", Errc::kMalformed, "text_config is missing"},
    {R"({"model_type":"gemma4","text_config":[]})", Errc::kMalformed, "text_config is an array of 0, wanted an object"},
    {backbone("", "gemma3"), Errc::kUnsupported, "\"gemma3\""},
    {backbone(R"("model_type":"gemma3_text")"), Errc::kUnsupported, "text_config.model_type is \"gemma3_text\""},
    {backbone(R"("vocab_size":0)"), Errc::kMalformed,
     "text_config.vocab_size is 0, wanted a whole number from 1 to 16777216"},
    {backbone(R"("hidden_size":-64)"), Errc::kMalformed, "hidden_size is -64"},
    {backbone(R"("hidden_size":64.0)"), Errc::kMalformed, "hidden_size is 64.0"},
    {backbone(R"("hidden_size":"64")"), Errc::kMalformed, "hidden_size is \"64\""},
    {backbone(R"("hidden_size":"a\nb")"), Errc::kMalformed, R"("a\nb")"},
    {backbone(R"("hidden_size":18446744073709551615)"), Errc::kMalformed, "hidden_size is 18446744073709551615"},
    {backbone(R"("hidden_size":1e400)"), Errc::kMalformed, "not JSON"},
    {backbone(R"("hidden_size":{"a":1})"), Errc::kMalformed, "hidden_size is an object"},
    {backbone(R"("num_hidden_layers":1025)"), Errc::kMalformed,
     "num_hidden_layers is 1025, wanted a whole number from 1 to 1024"},
    {backbone(R"("num_hidden_layers":0)"), Errc::kMalformed, "num_hidden_layers is 0"},
    {backbone(R"("num_attention_heads":3)"), Errc::kMalformed,
     "layer 0: num_attention_heads is 3, wanted a multiple of num_key_value_heads = 2"},
    {backbone(R"("head_dim":15)"), Errc::kMalformed, "layer 0: head_dim is 15, wanted an even number"},
    {backbone(R"("intermediate_size":null,"sliding_window":0)"), Errc::kMalformed, "sliding_window is 0"},
    {backbone(R"("rms_norm_eps":0)"), Errc::kMalformed, "rms_norm_eps is 0"},
    {backbone(R"("rms_norm_eps":"tiny")"), Errc::kMalformed, "rms_norm_eps is \"tiny\", wanted a number"},
    {backbone(R"("final_logit_softcapping":-30)"), Errc::kMalformed, "final_logit_softcapping is -30"},
    {backbone(R"("hidden_size_per_layer_input":8,"vocab_size_per_layer_input":511)"), Errc::kMalformed,
     "vocab_size_per_layer_input is 511, wanted at least vocab_size = 512"},
    {backbone(R"("layer_types":"sliding_attention")"), Errc::kMalformed,
     "layer_types is \"sliding_attention\", wanted an array of num_hidden_layers = 6"},
    {backbone(R"("layer_types":["full_attention"])"), Errc::kMalformed, "layer_types is an array of 1"},
    {backbone(R"("num_hidden_layers":1,"layer_types":["linear_attention"])"), Errc::kUnsupported,
     "layer_types[0] is \"linear_attention\", wanted sliding_attention or full_attention"},
    {backbone(R"("num_hidden_layers":1,"layer_types":[null])"), Errc::kUnsupported, "layer_types[0] is null"},
    {backbone(R"("per_layer_config":[])"), Errc::kMalformed, "per_layer_config is an array"},
    {backbone(R"("per_layer_config":{"6":{}})"), Errc::kMalformed,
     "per_layer_config key is \"6\", wanted a layer index from 0 to 5"},
    {backbone(R"("per_layer_config":{"-1":{}})"), Errc::kMalformed, "key is \"-1\""},
    {backbone(R"("per_layer_config":{"5x":{}})"), Errc::kMalformed, "key is \"5x\""},
    {backbone(R"("per_layer_config":{"":{}})"), Errc::kMalformed, "key is \"\""},
    {backbone(R"("per_layer_config":{"99999999999":{}})"), Errc::kMalformed, "key is \"99999999999\""},
    {backbone(R"("per_layer_config":{"5":{},"05":{}})"), Errc::kMalformed, "wanted each layer once"},
    {backbone(R"("per_layer_config":{"5":7})"), Errc::kMalformed, "per_layer_config.5 is 7, wanted an object"},
    {backbone(R"("per_layer_config":{"5":{"head_dim":"x"}})"), Errc::kMalformed,
     "text_config.per_layer_config.5.head_dim is \"x\""},
    {backbone(R"("per_layer_config":{"5":{"sliding_window":4}})"), Errc::kUnsupported,
     "5 key is \"sliding_window\", wanted head_dim or num_key_value_heads"},
    {backbone(R"("num_kv_shared_layers":6)"), Errc::kMalformed,
     "num_kv_shared_layers is 6, wanted a whole number from 0 to 5"},
    {backbone(R"("num_kv_shared_layers":3)"), Errc::kMalformed,
     "layer 5: shares the K/V of an earlier full_attention layer"},
    {backbone(R"("num_kv_shared_layers":1,"layer_types":["full_attention","sliding_attention","sliding_attention",)"
              R"("sliding_attention","sliding_attention","full_attention"],"per_layer_config":{"5":{"head_dim":32}})"),
     Errc::kMalformed, "layer 5: reads K/V of 2 x 32 (heads x head_dim), but layer 0 has 2 x 16"},
    {backbone(R"("rope_parameters":7)"), Errc::kMalformed, "rope_parameters is 7"},
    {backbone(R"("rope_parameters":{"full_attention":{"rope_theta":1e6}})"), Errc::kMalformed,
     "rope_parameters.sliding_attention is missing"},
    {backbone(R"("rope_parameters":{"sliding_attention":{"rope_theta":1e4}})"), Errc::kMalformed,
     "rope_parameters.full_attention is missing"},
    {backbone(R"("rope_parameters":{"sliding_attention":{},"full_attention":{"rope_theta":1e6}})"), Errc::kMalformed,
     "sliding_attention.rope_theta is missing"},
    {backbone(R"("rope_parameters":{"sliding_attention":{"rope_theta":1e4,"rope_type":"yarn"},)"
              R"("full_attention":{"rope_theta":1e6}})"),
     Errc::kUnsupported, "sliding_attention.rope_type is \"yarn\", wanted default or proportional"},
    {backbone(R"("rope_parameters":{"sliding_attention":{"rope_theta":1e4},)"
              R"("full_attention":{"rope_theta":1e6,"rope_type":"proportional","partial_rotary_factor":1.5}})"),
     Errc::kMalformed, "partial_rotary_factor is 1.5, wanted a number from 0 to 1"},
    {backbone(R"("use_bidirectional_attention":"all")"), Errc::kUnsupported,
     "use_bidirectional_attention is \"all\", wanted vision"},
    {backbone(R"("use_bidirectional_attention":true)"), Errc::kMalformed, "use_bidirectional_attention is true"},
    {backbone(R"("hidden_activation":"silu")"), Errc::kUnsupported, "hidden_activation is \"silu\""},
    {backbone(R"("attention_bias":true)"), Errc::kUnsupported, "attention_bias is true, wanted false"},
    {backbone(R"("attention_k_eq_v":1)"), Errc::kMalformed, "attention_k_eq_v is 1, wanted true or false"},
    {backbone(R"("tie_word_embeddings":false)"), Errc::kUnsupported, "tie_word_embeddings is false, wanted true"},
    {backbone(R"("enable_moe_block":true)"), Errc::kMalformed, "num_experts is missing"},
    {backbone(R"("enable_moe_block":true,"num_experts":2,"top_k_experts":3,"moe_intermediate_size":8)"),
     Errc::kMalformed, "top_k_experts is 3, wanted a whole number from 1 to 2"},
};

TEST(TextConfig, RefusesBadFilesWithOneLine) {
  for (const BadConfig& bad : kBadConfigs) {
    SCOPED_TRACE(bad.json.substr(0, 400));
    const Result<TextConfig> config = parse_text_config(bad.json, "dir/config.json");
    ASSERT_FALSE(config);
    expect_error(config.error(), bad);
  }
}

TEST(AssistantConfig, OwnsNoKeysAndValuesHoweverSharingIsSpelled) {
  for (const char* more :
       {"", R"("num_kv_shared_layers":0)", R"("num_kv_shared_layers":6)", R"("num_kv_shared_layers":null)"}) {
    SCOPED_TRACE(more);
    const Result<AssistantConfig> c = parse_assistant_config(assistant(more), "config.json");
    ASSERT_TRUE(c) << c.error().message;
    EXPECT_EQ(c->text.first_shared, 0);
    EXPECT_EQ(donors(c->text), Layers(6, kDonorOutside));
    for (const LayerConfig& layer : c->text.layers) EXPECT_FALSE(layer.owns_kv);
  }
}

TEST(AssistantConfig, BothSpellingsGiveTheTargetsHeads) {
  for (const char* more :
       {R"("global_head_dim":32,"attention_k_eq_v":true,"num_global_key_value_heads":1)",
        R"("attention_k_eq_v":true,"per_layer_config":{"5":{"head_dim":32,"num_key_value_heads":1}})"}) {
    const Result<AssistantConfig> c = parse_assistant_config(assistant(more), "config.json");
    ASSERT_TRUE(c) << c.error().message;
    EXPECT_EQ(head_dims(c->text), (Sizes{16, 16, 16, 16, 16, 32}));
    EXPECT_EQ(kv_heads(c->text), (Sizes{2, 2, 2, 2, 2, 1}));
  }
}

TEST(AssistantConfig, IgnoresCentroidsItDoesNotUse) {
  const Result<AssistantConfig> c = parse_assistant_config(assistant("", R"("num_centroids":7)"), "config.json");
  ASSERT_TRUE(c) << c.error().message;
  EXPECT_FALSE(c->use_ordered_embeddings);
  EXPECT_EQ(c->num_centroids, 0);
}

TEST(AssistantConfig, RefusesBadFilesWithOneLine) {
  constexpr const char* kOrdered = R"("use_ordered_embeddings":true)";
  for (const BadConfig& bad : std::vector<BadConfig>{
           {backbone(), Errc::kUnsupported,
            "model_type is \"gemma4\", wanted gemma4_assistant or gemma4_unified_assistant"},
           {R"({"model_type":"gemma4_assistant"})", Errc::kMalformed, "text_config is missing"},
           {assistant("", R"("backbone_hidden_size":0)"), Errc::kMalformed, "backbone_hidden_size is 0"},
           {assistant(R"("num_kv_shared_layers":2)"), Errc::kUnsupported,
            "num_kv_shared_layers is 2, wanted 0 or num_hidden_layers = 6"},
           {assistant(R"("hidden_size_per_layer_input":8)"), Errc::kMalformed, "hidden_size_per_layer_input is 8"},
           {assistant(R"("use_double_wide_mlp":true)"), Errc::kUnsupported, "use_double_wide_mlp is true"},
           {assistant(R"("enable_moe_block":true)"), Errc::kUnsupported, "enable_moe_block is true"},
           {assistant("", fmt::format(R"({},"num_centroids":7,"centroid_intermediate_top_k":1)", kOrdered)),
            Errc::kMalformed, "num_centroids is 7, wanted a divisor of vocab_size = 512"},
           {assistant("", fmt::format(R"({},"num_centroids":0)", kOrdered)), Errc::kMalformed, "num_centroids is 0"},
           {assistant("", fmt::format(R"({},"num_centroids":8,"centroid_intermediate_top_k":9)", kOrdered)),
            Errc::kMalformed, "centroid_intermediate_top_k is 9, wanted a whole number from 1 to 8"},
       }) {
    SCOPED_TRACE(bad.json.substr(0, 400));
    const Result<AssistantConfig> config = parse_assistant_config(bad.json, "dir/config.json");
    ASSERT_FALSE(config);
    expect_error(config.error(), bad);
  }
}

TEST(Config, MissingFilesAreNotFound) {
  const TemporaryDir dir;
  EXPECT_EQ(load_text_config(model_at(dir.path())).error().code, Errc::kNotFound);
  EXPECT_EQ(load_assistant_config(model_at(dir.path())).error().code, Errc::kNotFound);
  EXPECT_NE(load_text_config(model_at(dir.path())).error().message.find("config.json"), std::string::npos);
  const Result<ModelFiles> nowhere = ModelFiles::open(dir.path() / "nowhere");
  EXPECT_EQ(nowhere.error().code, Errc::kNotFound);
  EXPECT_EQ(nowhere.error().message, (dir.path() / "nowhere").string() + ": no such file or directory, wanted a model");
}

struct EosCase {
  const char* name;
  const char* generation_config;  // null: no such file
  const char* config;
  std::vector<TokenId> wanted;
};

TEST(EosTokenIds, ComeFromTheFirstFileThatHasThem) {
  for (const EosCase& c : std::vector<EosCase>{
           {"generation_config list", R"({"eos_token_id":[1,106,50]})", R"({"eos_token_id":2})", {1, 106, 50}},
           {"generation_config number", R"({"eos_token_id":106})", nullptr, {106}},
           {"generation_config null", R"({"eos_token_id":null})", R"({"eos_token_id":[3]})", {3}},
           {"generation_config without", "{}", R"({"text_config":{"eos_token_id":4},"eos_token_id":[5,6]})", {5, 6}},
           {"text_config alone", "{}", R"({"text_config":{"eos_token_id":4},"eos_token_id":null})", {4}},
           {"top level", nullptr, R"({"text_config":{},"eos_token_id":5})", {5}},
           {"nowhere", "{}", "{}", {1}},
           {"no files", nullptr, nullptr, {1}}}) {
    SCOPED_TRACE(c.name);
    const TemporaryDir dir;
    if (c.generation_config != nullptr) dir.write("generation_config.json", c.generation_config);
    if (c.config != nullptr) dir.write("config.json", c.config);
    const Result<GenerationConfig> config = load_generation_config(model_at(dir.path()));
    ASSERT_TRUE(config) << config.error().message;
    EXPECT_EQ(config->eos_token_ids, c.wanted);
  }
  EXPECT_EQ(load_generation_config(model_at(kSource / "models/nano/backbone")).value().eos_token_ids,
            (std::vector<TokenId>{1, 106}));
}

TEST(EosTokenIds, RefusesWhatIsNoTokenId) {
  const TemporaryDir dir;
  for (const char* value : {"-1", "2147483648", "1.0", "\"1\"", "[]", "[1,null]", "[[1]]", "{}", "true"}) {
    SCOPED_TRACE(value);
    dir.write("generation_config.json", fmt::format(R"({{"eos_token_id":{}}})", value));
    const Result<GenerationConfig> ids = load_generation_config(model_at(dir.path()));
    ASSERT_FALSE(ids);
    EXPECT_EQ(ids.error().code, Errc::kMalformed);
    EXPECT_NE(ids.error().message.find("eos_token_id is "), std::string::npos) << ids.error().message;
  }
  dir.write("generation_config.json", "[");
  EXPECT_EQ(load_generation_config(model_at(dir.path())).error().code, Errc::kMalformed);
}

}  // namespace
}  // namespace outrider
