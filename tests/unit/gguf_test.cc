// GGUF as a source of tensors, config, stop tokens and tokenizer, against the Hugging Face files that the
// GGUF was written from; and every way in which a file can be bad, by its message.
#include "common/model/checkpoint/gguf.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>
#include <functional>
#include <map>
#include <random>

#include <unistd.h>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "common/compute/tensor/decode.h"
#include "common/model/checkpoint/checkpoint.h"
#include "common/model/checkpoint/gguf_names.h"
#include "common/model/gemma4/config.h"
#include "common/model/gemma4/generation_config.h"
#include "common/model/tokenizer/chat.h"
#include "common/model/tokenizer/tokenizer.h"
#include "tests/support/ggml_blocks.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/model_at.h"
#include "tests/support/temporary_dir.h"

namespace outrider {
namespace {

namespace fs = std::filesystem;

const fs::path kSource = OUTRIDER_SOURCE_DIR;
const fs::path kNanoBackbone = kSource / "models/nano/backbone", kNanoAssistant = kSource / "models/nano/assistant";

std::span<const std::byte> as_bytes(const std::string& text) { return std::as_bytes(std::span(text)); }

template <typename T>
void expect_error(const Result<T>& result, Errc code, std::string_view part) {
  ASSERT_FALSE(result) << "wanted an error with: " << part;
  EXPECT_STREQ(to_string(result.error().code), to_string(code)) << result.error().message;
  EXPECT_NE(result.error().message.find(part), std::string::npos) << result.error().message << "\nwanted: " << part;
  EXPECT_EQ(result.error().message.find('\n'), std::string::npos) << result.error().message;
  EXPECT_LT(result.error().message.size(), 1000u);
}

// ---------------------------------------------------------------- names

TEST(GgufNames, AreLlamaCppsForHuggingFaces) {
  // As listed by llama.cpp's converter; written out here a second time on purpose.
  const std::pair<const char*, const char*> pairs[] = {
      {"token_embd.weight", "model.embed_tokens.weight"},
      {"output_norm.weight", "model.norm.weight"},
      {"per_layer_token_embd.weight", "model.embed_tokens_per_layer.weight"},
      {"per_layer_model_proj.weight", "model.per_layer_model_projection.weight"},
      {"per_layer_proj_norm.weight", "model.per_layer_projection_norm.weight"},
      {"nextn.pre_projection.weight", "pre_projection.weight"},
      {"nextn.post_projection.weight", "post_projection.weight"},
      {"masked_embd_centroids.weight", "masked_embedding.centroids.weight"},
      {"masked_embd_ordering", "masked_embedding.token_ordering"},
      {"blk.0.attn_norm.weight", "model.layers.0.input_layernorm.weight"},
      {"blk.3.attn_q.weight", "model.layers.3.self_attn.q_proj.weight"},
      {"blk.3.attn_k_norm.weight", "model.layers.3.self_attn.k_norm.weight"},
      {"blk.41.attn_output.weight", "model.layers.41.self_attn.o_proj.weight"},
      {"blk.1.post_attention_norm.weight", "model.layers.1.post_attention_layernorm.weight"},
      {"blk.1.ffn_norm.weight", "model.layers.1.pre_feedforward_layernorm.weight"},
      {"blk.1.post_ffw_norm.weight", "model.layers.1.post_feedforward_layernorm.weight"},
      {"blk.1.ffn_down.weight", "model.layers.1.mlp.down_proj.weight"},
      {"blk.1.layer_output_scale.weight", "model.layers.1.layer_scalar"},
      {"blk.1.inp_gate.weight", "model.layers.1.per_layer_input_gate.weight"},
      {"blk.1.proj.weight", "model.layers.1.per_layer_projection.weight"},
      {"blk.1.post_norm.weight", "model.layers.1.post_per_layer_input_norm.weight"},
      {"blk.1.ffn_gate_inp.weight", "model.layers.1.router.proj.weight"},
      {"blk.1.ffn_gate_inp.scale", "model.layers.1.router.scale"},
      {"blk.1.ffn_down_exps.scale", "model.layers.1.router.per_expert_scale"},
      {"blk.1.ffn_gate_up_exps.weight", "model.layers.1.experts.gate_up_proj"},
      {"blk.1.ffn_gate_exps.weight", "model.layers.1.experts.gate_proj"},
      {"blk.1.ffn_up_exps.weight", "model.layers.1.experts.up_proj"},
      {"blk.1.ffn_down_exps.weight", "model.layers.1.experts.down_proj"},
      {"blk.1.pre_ffw_norm_2.weight", "model.layers.1.pre_feedforward_layernorm_2.weight"},
      {"blk.1.post_ffw_norm_1.weight", "model.layers.1.post_feedforward_layernorm_1.weight"},
      {"blk.1.post_ffw_norm_2.weight", "model.layers.1.post_feedforward_layernorm_2.weight"},
  };
  for (const auto& [gguf, hugging_face] : pairs) {
    EXPECT_EQ(hugging_face_name(gguf), hugging_face);
    EXPECT_EQ(gguf_name(hugging_face), gguf);
  }
  for (const char* const other : {"mtp.pre_projection.weight", "mtp_pre_proj.weight"})  // of other converters
    EXPECT_EQ(hugging_face_name(other), "pre_projection.weight");
  for (const char* other :
       {"", "rope_freqs.weight", "mtp_token_ordering.weight", "blk.", "blk.7", "blk.7.", "blk.x.attn_q.weight",
        "blk..attn_q.weight", "blk.1.attn_q", "blk.1.ssm_a", "attn_q.weight"}) {
    EXPECT_EQ(hugging_face_name(other), std::nullopt) << other;
  }
}

// ---------------------------------------------------------------- blocks

TEST(GgufBlocks, OfEveryTypeAreBitForBitWhatGgufPyMakesOfThem) {
  const Checkpoint recorded = Checkpoint::open(kSource / "tests/goldens/gguf/blocks.safetensors").value();
  int types = 0;
  for (const TensorEntry& entry : recorded.tensors()) {
    if (!entry.name.ends_with(".blocks")) continue;
    const std::string name = entry.name.substr(0, entry.name.find('.'));
    SCOPED_TRACE(name);
    const std::optional<DType> type = parse_dtype(name);
    ASSERT_TRUE(type);
    const TensorEntry* const values = recorded.find(name + ".values");
    ASSERT_NE(values, nullptr);
    std::vector<float> wanted(static_cast<std::size_t>(values->element_count())), seen(wanted.size());
    ASSERT_TRUE(read_f32(*values, wanted));
    ASSERT_EQ(entry.bytes.size(), stored_bytes(*type, seen.size()));
    decode(*type, entry.bytes.data(), seen);
    for (std::size_t i = 0; i < seen.size(); ++i)
      ASSERT_EQ(std::bit_cast<std::uint32_t>(seen[i]), std::bit_cast<std::uint32_t>(wanted[i]))
          << "element " << i << ": " << seen[i] << ", wanted " << wanted[i];
    ++types;
  }
  EXPECT_EQ(types, 18);
}

// ---------------------------------------------------------------- whole models

/// The text model's tensors, as floats or integers under their text-only names.
std::map<std::string, std::pair<std::vector<std::int64_t>, std::vector<float>>> all_tensors(
    const Checkpoint& checkpoint) {
  std::map<std::string, std::pair<std::vector<std::int64_t>, std::vector<float>>> tensors;
  for (const TensorEntry& entry : checkpoint.tensors()) {
    std::vector<float> values(static_cast<std::size_t>(entry.element_count()));
    if (entry.dtype == DType::kI64 || entry.dtype == DType::kI32) {
      std::vector<std::int64_t> integers(values.size());
      EXPECT_TRUE(read_i64(entry, integers));
      std::ranges::transform(integers, values.begin(), [](std::int64_t x) { return static_cast<float>(x); });
    } else {
      const Result<void> read = read_f32(entry, values);
      EXPECT_TRUE(read) << read.error().message;
    }
    std::string name = entry.name;
    constexpr const char* kTowers[] = {"model.vision_tower.", "model.embed_vision.", "model.audio_tower.",
                                       "model.embed_audio."};
    if (std::ranges::any_of(kTowers, [&](const char* tower) { return name.starts_with(tower); })) continue;
    if (name.starts_with("model.language_model.")) name = "model." + name.substr(21);
    tensors.emplace(std::move(name), std::pair(entry.shape, std::move(values)));
  }
  return tensors;
}

struct Stored {
  DType type;
  float tolerance;  // relative to the largest value of a tensor, and 0 for exact
};
class NanoAs : public testing::TestWithParam<Stored> {};

TEST_P(NanoAs, GgufHasTheTensorsOfTheSafetensors) {
  const TemporaryDir dir;
  for (const fs::path& model : {kNanoBackbone, kNanoAssistant}) {
    const auto wanted = all_tensors(Checkpoint::open(model).value());
    const fs::path file = write_gguf(model, dir.path() / "model.gguf", {.type = GetParam().type});
    const Result<Checkpoint> gguf = Checkpoint::open(file);
    ASSERT_TRUE(gguf) << gguf.error().message;
    auto seen = all_tensors(*gguf);
    EXPECT_EQ(seen.erase("rope_freqs.weight"), 1u);
    ASSERT_EQ(seen.size(), wanted.size());
    for (const auto& [name, tensor] : wanted) {
      SCOPED_TRACE(name);
      ASSERT_TRUE(seen.contains(name));
      ASSERT_EQ(seen[name].first, tensor.first);
      if (GetParam().tolerance == 0) {
        ASSERT_TRUE(seen[name].second == tensor.second);
        continue;
      }
      float largest = 0, off = 0;
      for (std::size_t i = 0; i < tensor.second.size(); ++i) {
        largest = std::max(largest, std::abs(tensor.second[i]));
        off = std::max(off, std::abs(tensor.second[i] - seen[name].second[i]));
      }
      EXPECT_LE(off, GetParam().tolerance * largest);
    }
  }
}
INSTANTIATE_TEST_SUITE_P(
    EachType, NanoAs,
    testing::Values(Stored{DType::kF32, 0}, Stored{DType::kBf16, 0},
                    Stored{DType::kF16, 0x1p-20f},  // bf16's 8 bits fit f16's 11, but not all exponents do
                    Stored{DType::kQ8_0, 0.51f / 127 + 0x1p-11f},  // half a step, and the scale's own rounding
                    Stored{DType::kQ4_0, 1.02f / 7}),              // +8 of a range to -8 is cut to +7
    [](const auto& param_info) { return std::string(to_string(param_info.param.type)); });

void expect_same(const TextConfig& seen, const TextConfig& wanted, bool assistant) {
  EXPECT_EQ(seen.vocab_size, wanted.vocab_size);
  EXPECT_EQ(seen.hidden_size, wanted.hidden_size);
  EXPECT_EQ(seen.intermediate_size, wanted.intermediate_size);
  EXPECT_EQ(seen.num_hidden_layers, wanted.num_hidden_layers);
  EXPECT_EQ(seen.num_attention_heads, wanted.num_attention_heads);
  EXPECT_EQ(seen.sliding_window, wanted.sliding_window);
  EXPECT_EQ(seen.rms_norm_eps, wanted.rms_norm_eps);
  EXPECT_EQ(seen.final_logit_softcapping, wanted.final_logit_softcapping);
  EXPECT_EQ(seen.hidden_size_per_layer_input, wanted.hidden_size_per_layer_input);
  EXPECT_EQ(seen.vocab_size_per_layer_input, wanted.vocab_size_per_layer_input);
  EXPECT_EQ(seen.enable_moe_block, wanted.enable_moe_block);
  EXPECT_EQ(seen.num_experts, wanted.num_experts);
  EXPECT_EQ(seen.top_k_experts, wanted.top_k_experts);
  EXPECT_EQ(seen.moe_intermediate_size, wanted.moe_intermediate_size);
  EXPECT_EQ(seen.max_position_embeddings, wanted.max_position_embeddings);
  EXPECT_EQ(seen.first_shared, wanted.first_shared);
  for (const AttentionKind kind : {AttentionKind::kSliding, AttentionKind::kFull}) {
    EXPECT_EQ(seen.rope(kind).rope_theta, wanted.rope(kind).rope_theta);
    EXPECT_EQ(seen.rope(kind).proportional, wanted.rope(kind).proportional);
    EXPECT_EQ(seen.rope(kind).partial_rotary_factor, wanted.rope(kind).partial_rotary_factor);
    EXPECT_EQ(seen.rope(kind).factor, wanted.rope(kind).factor);
  }
  ASSERT_EQ(seen.layers.size(), wanted.layers.size());
  for (std::size_t i = 0; i < seen.layers.size(); ++i) {
    SCOPED_TRACE(fmt::format("layer {}", i));
    EXPECT_EQ(seen.layers[i].kind, wanted.layers[i].kind);
    EXPECT_EQ(seen.layers[i].head_dim, wanted.layers[i].head_dim);
    EXPECT_EQ(seen.layers[i].num_key_value_heads, wanted.layers[i].num_key_value_heads);
    EXPECT_EQ(seen.layers[i].intermediate_size, wanted.layers[i].intermediate_size);
    EXPECT_EQ(seen.layers[i].donor, wanted.layers[i].donor);
    EXPECT_EQ(seen.layers[i].owns_kv, wanted.layers[i].owns_kv);
    // An assistant has no K/V of its own, and a GGUF nothing to say of it.
    if (!assistant) {
      EXPECT_EQ(seen.layers[i].k_eq_v, wanted.layers[i].k_eq_v);
    }
  }
}

/// What `load` reads of the model there.
template <typename T>
Result<T> load_from(const fs::path& path, Result<T> (*load)(const ModelFiles&)) {
  ASSIGN_OR_RETURN(const ModelFiles files, ModelFiles::open(path));
  return load(files);
}
Result<TextConfig> text_config(const fs::path& path) { return load_from(path, load_text_config); }
Result<AssistantConfig> assistant_config(const fs::path& path) { return load_from(path, load_assistant_config); }
Result<GenerationConfig> generation_config(const fs::path& path) { return load_from(path, load_generation_config); }

/// Every model of the tests: folders with a config.json and weights. A tower alone is none.
std::vector<fs::path> models(const char* part) {
  std::vector<fs::path> found = {kSource / "models/nano" / part};
  for (const auto& golden : fs::directory_iterator(kSource / "tests/goldens")) {
    const std::string name = golden.path().filename();
    if (name == "vision-odd" || name == "audio-odd" || name == "unified-media") continue;  // without a text model
    if (fs::exists(golden.path() / part / "model.safetensors")) found.push_back(golden.path() / part);
  }
  EXPECT_GE(found.size(), 4u);
  return found;
}

TEST(GgufConfig, EqualsTheConfigOfEveryBackbone) {
  const TemporaryDir dir;
  for (const fs::path& model : models("backbone")) {
    SCOPED_TRACE(model);
    const Result<TextConfig> wanted = text_config(model);
    ASSERT_TRUE(wanted) << wanted.error().message;
    const Result<TextConfig> seen = text_config(write_gguf(model, dir.path() / "model.gguf"));
    ASSERT_TRUE(seen) << seen.error().message;
    expect_same(*seen, *wanted, false);
    EXPECT_EQ(seen->notes, std::vector<std::string>());
  }
}

TEST(GgufConfig, EqualsTheConfigOfEveryAssistant) {
  const TemporaryDir dir;
  for (const fs::path& model : models("assistant")) {
    SCOPED_TRACE(model);
    const AssistantConfig wanted = assistant_config(model).value();
    const Result<AssistantConfig> seen = assistant_config(write_gguf(model, dir.path() / "model.gguf"));
    ASSERT_TRUE(seen) << seen.error().message;
    expect_same(seen->text, wanted.text, true);
    EXPECT_EQ(seen->backbone_hidden_size, wanted.backbone_hidden_size);
    EXPECT_EQ(seen->use_ordered_embeddings, wanted.use_ordered_embeddings);
    EXPECT_EQ(seen->num_centroids, wanted.num_centroids);
    EXPECT_EQ(seen->centroid_intermediate_top_k, wanted.centroid_intermediate_top_k);
  }
}

// ---------------------------------------------------------------- one value of the config changed

/// The config of the e4b golden's GGUF after a change.
Result<TextConfig> edited(const std::function<void(GgufWriter&)>& edit) {
  const TemporaryDir dir;
  return text_config(write_gguf(kSource / "tests/goldens/e4b/backbone", dir.path() / "model.gguf",
                                {.type = DType::kF32, .edit = edit}));
}
Result<AssistantConfig> edited_assistant(const std::function<void(GgufWriter&)>& edit) {
  const TemporaryDir dir;
  return assistant_config(write_gguf(kSource / "tests/goldens/e4b/assistant", dir.path() / "model.gguf",
                                     {.type = DType::kF32, .edit = edit}));
}

TEST(GgufConfig, TensorsOverruleTheMetadataAndANoteSaysSo) {
  const TextConfig wanted = text_config(kSource / "tests/goldens/e4b/backbone").value();
  struct Lie {
    const char* key;
    std::int64_t said;
    const char* note;
  };
  for (const Lie& lie :
       {Lie{"gemma4.embedding_length", 2560,
            "gemma4.embedding_length is 2560, but token_embd.weight says 64, which is used"},
        Lie{"gemma4.vocab_size", 262144, "gemma4.vocab_size is 262144, but token_embd.weight says 512"},
        Lie{"gemma4.feed_forward_length", 10240,
            "gemma4.feed_forward_length is 10240, but blk.0.ffn_gate.weight says 96"},
        Lie{"gemma4.attention.head_count", 16, "gemma4.attention.head_count is 16, but blk.0.attn_q.weight says 4"},
        Lie{"gemma4.attention.head_count_kv", 1, "gemma4.attention.head_count_kv is 1, but blk.0.attn_k.weight says 2"},
        Lie{"gemma4.embedding_length_per_layer_input", 256, "input is 256, but per_layer_proj_norm.weight says 8"}}) {
    SCOPED_TRACE(lie.key);
    const Result<TextConfig> seen = edited([&](GgufWriter& w) { w.u32(lie.key, lie.said); });
    ASSERT_TRUE(seen) << seen.error().message;
    expect_same(*seen, wanted, false);
    ASSERT_EQ(seen->notes.size(), 1u);
    EXPECT_NE(seen->notes[0].find(lie.note), std::string::npos) << seen->notes[0];
  }
  const Result<TextConfig> heads = edited([](GgufWriter& w) {
    w.u32("gemma4.attention.key_length", 512);
    w.u32("gemma4.attention.value_length", 512);
  });
  ASSERT_TRUE(heads) << heads.error().message;
  expect_same(*heads, wanted, false);
  EXPECT_EQ(heads->notes.size(), 1u);  // once, not once per layer

  const Result<AssistantConfig> assistant =
      edited_assistant([](GgufWriter& w) { w.u32("gemma4-assistant.embedding_length_out", 2560); });
  ASSERT_TRUE(assistant) << assistant.error().message;
  EXPECT_EQ(assistant->backbone_hidden_size, 64);
  EXPECT_EQ(assistant->text.notes.size(), 1u);
}

TEST(GgufConfig, ReadsTheOtherSpellings) {
  const TextConfig wanted = text_config(kSource / "tests/goldens/e4b/backbone").value();
  const Result<TextConfig> period = edited([](GgufWriter& w) { w.u32("gemma4.attention.sliding_window_pattern", 4); });
  ASSERT_TRUE(period) << period.error().message;
  expect_same(*period, wanted, false);

  const Result<TextConfig> arrays = edited([](GgufWriter& w) {
    w.i32s("gemma4.attention.head_count_kv", std::vector<std::int64_t>(8, 2));
    w.u32s("gemma4.feed_forward_length", std::vector<std::int64_t>(8, 96));
    w.u32s("gemma4.attention.head_count", std::vector<std::int64_t>(8, 4));
  });
  ASSERT_TRUE(arrays) << arrays.error().message;
  expect_same(*arrays, wanted, false);

  const Result<TextConfig> uncapped = edited([](GgufWriter& w) { w.erase("gemma4.final_logit_softcapping"); });
  EXPECT_EQ(uncapped.value().final_logit_softcapping, 0);
}

TEST(GgufConfig, RopeFreqsGiveThePartThatRotatesAndTheFactor) {
  const auto with = [](std::vector<float> divisors) {
    return edited([&](GgufWriter& w) {
      GgufWriter::Tensor& tensor = *w.find("rope_freqs.weight");
      tensor.extents = {divisors.size()};
      tensor.data = encode(DType::kF32, divisors);
    });
  };
  std::vector<float> divisors(16, 1e30f);  // head_dim 32
  for (std::size_t rotating = 0; rotating <= 16; ++rotating) {
    if (rotating > 0) divisors[rotating - 1] = 1;
    if (rotating == 0) continue;
    const Result<TextConfig> config = with(divisors);
    ASSERT_TRUE(config) << config.error().message;
    EXPECT_TRUE(config->full_rope.proportional);
    EXPECT_EQ(static_cast<std::size_t>(config->full_rope.partial_rotary_factor * 32 / 2), rotating);
    EXPECT_EQ(config->full_rope.factor, 1);
  }
  std::vector<float> scaled(16, 1e30f);
  std::fill_n(scaled.begin(), 4, 8.0f);
  EXPECT_EQ(with(scaled).value().full_rope.factor, 8);
  EXPECT_EQ(with(scaled).value().full_rope.partial_rotary_factor, 0.25);

  expect_error(with(std::vector<float>(16, 1e30f)), Errc::kUnsupported, "tensor rope_freqs.weight holds other values");
  scaled[2] = 4;
  expect_error(with(scaled), Errc::kUnsupported,
               "tensor rope_freqs.weight holds other values, wanted one number, then only numbers from 1e+29 on");
  scaled[2] = NAN;
  expect_error(with(scaled), Errc::kUnsupported, "tensor rope_freqs.weight holds other values");
  expect_error(with(std::vector<float>(8, 1)), Errc::kMismatch, "tensor rope_freqs.weight has 8 elements, wanted 16");
}

TEST(GgufConfig, CentroidsNeedBothTensorsAndHaveADefaultTopK) {
  const auto plain = edited_assistant([](GgufWriter& w) { w.find("masked_embd_ordering")->name = "something_else"; });
  ASSERT_TRUE(plain) << plain.error().message;
  EXPECT_FALSE(plain->use_ordered_embeddings);
  const auto defaulted = edited_assistant([](GgufWriter& w) { w.erase("gemma4-assistant.masked_embedding.top_k"); });
  EXPECT_EQ(defaulted.value().num_centroids, 32);
  EXPECT_EQ(defaulted.value().centroid_intermediate_top_k, 32);
}

// AtomicChat's and ik_llama.cpp's, whose sources have these names; the latter's mtp_token_ordering is another table.
TEST(GgufConfig, ReadsTheDraftersOfOtherConverters) {
  const fs::path model = kSource / "tests/goldens/e4b/assistant";
  const AssistantConfig wanted = assistant_config(model).value();
  const Checkpoint original = Checkpoint::open(model).value();
  const struct {
    const char* arch;
    std::vector<const char*> names;  ///< instead of kNames; null: the tensor is missing
    bool has_ordering;
  } kConverters[] = {
      {"gemma4_assistant",
       {"mtp.pre_projection.weight", "mtp.post_projection.weight", "mtp.centroids.weight", "mtp.token_ordering.weight",
        "rope_freqs.weight"},
       true},
      {"gemma4_mtp",
       {"mtp_pre_proj.weight", "mtp_post_proj.weight", "mtp_centroids.weight", "mtp_token_ordering.weight", nullptr},
       false},
  };
  constexpr const char* kNames[] = {"nextn.pre_projection.weight", "nextn.post_projection.weight",
                                    "masked_embd_centroids.weight", "masked_embd_ordering", "rope_freqs.weight"};
  for (const auto& [arch, names, has_ordering] : kConverters) {
    SCOPED_TRACE(arch);
    const auto edit = [&](GgufWriter& w) {
      const std::string prefix = std::string(arch) + ".";
      w.rename_keys("gemma4-assistant.", prefix);
      w.string("general.architecture", arch);
      for (const char* const key : {"embedding_length_out", "nextn_predict_layers", "masked_embedding.top_k"})
        w.erase(prefix + key);
      w.u32(prefix + "centroid_top_k", wanted.centroid_intermediate_top_k);
      for (std::size_t i = 0; i < std::size(kNames); ++i) w.find(kNames[i])->name = names[i] ? names[i] : "";
      std::erase_if(w.tensors, [](const GgufWriter::Tensor& tensor) { return tensor.name.empty(); });
    };
    const TemporaryDir dir;
    const fs::path file = write_gguf(model, dir.path() / "model.gguf", {.type = DType::kF32, .edit = edit});
    const Result<AssistantConfig> seen = assistant_config(file);
    ASSERT_TRUE(seen) << seen.error().message;
    expect_same(seen->text, wanted.text, true);
    EXPECT_EQ(seen->text.notes, std::vector<std::string>());
    EXPECT_EQ(seen->backbone_hidden_size, wanted.backbone_hidden_size);
    EXPECT_EQ(seen->use_ordered_embeddings, has_ordering);
    if (has_ordering) {
      EXPECT_EQ(seen->num_centroids, wanted.num_centroids);
      EXPECT_EQ(seen->centroid_intermediate_top_k, wanted.centroid_intermediate_top_k);
    }
    const Checkpoint opened = Checkpoint::open(file).value();
    for (const TensorEntry& tensor : original.tensors())
      EXPECT_EQ(opened.find(tensor.name) != nullptr, has_ordering || !tensor.name.starts_with("masked_embedding."))
          << tensor.name;
  }
}

struct BadConfig {
  const char* name;
  std::function<void(GgufWriter&)> edit;
  Errc code;
  const char* message;
};
void PrintTo(const BadConfig& bad, std::ostream* out) { *out << bad.name; }
class GgufConfigRefuses : public testing::TestWithParam<BadConfig> {};

TEST_P(GgufConfigRefuses, WithOneLineThatSaysWhy) {
  expect_error(edited(GetParam().edit), GetParam().code, GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(
    Each, GgufConfigRefuses,
    testing::Values(
        BadConfig{"Architecture", [](GgufWriter& w) { w.string("general.architecture", "llama"); }, Errc::kUnsupported,
                  "general.architecture is \"llama\", wanted gemma4 or gemma4-assistant"},
        BadConfig{"NoArchitecture", [](GgufWriter& w) { w.erase("general.architecture"); }, Errc::kNotFound,
                  "general.architecture is missing, wanted a string"},
        BadConfig{"NoLayers", [](GgufWriter& w) { w.u32("gemma4.block_count", 0); }, Errc::kMalformed,
                  "gemma4.block_count is 0, wanted a whole number from 1 to 1024"},
        BadConfig{"TooManyLayers", [](GgufWriter& w) { w.u32("gemma4.block_count", 4000000000); }, Errc::kMalformed,
                  "block_count is 4000000000"},
        BadConfig{"FewerLayersThanFlags", [](GgufWriter& w) { w.u32("gemma4.block_count", 7); }, Errc::kMalformed,
                  "gemma4.attention.sliding_window_pattern has 8 elements, wanted block_count = 7"},
        BadConfig{"LayersAsText", [](GgufWriter& w) { w.string("gemma4.block_count", "8"); }, Errc::kMalformed,
                  "gemma4.block_count is of type string, wanted a whole number"},
        BadConfig{"NoContext", [](GgufWriter& w) { w.erase("gemma4.context_length"); }, Errc::kNotFound,
                  "gemma4.context_length is missing"},
        BadConfig{"HugeContext", [](GgufWriter& w) { w.u32("gemma4.context_length", 0xffffffff); }, Errc::kMalformed,
                  "max_position_embeddings is 4294967295, wanted"},
        BadConfig{"NoPattern", [](GgufWriter& w) { w.erase("gemma4.attention.sliding_window_pattern"); },
                  Errc::kNotFound, "gemma4.attention.sliding_window_pattern is missing"},
        BadConfig{"ZeroPeriod", [](GgufWriter& w) { w.u32("gemma4.attention.sliding_window_pattern", 0); },
                  Errc::kMalformed, "wanted a period of at least 1"},
        BadConfig{"EpsilonNaN", [](GgufWriter& w) { w.f32("gemma4.attention.layer_norm_rms_epsilon", NAN); },
                  Errc::kMalformed, "wanted a finite number"},
        BadConfig{"KeysAndValuesDiffer", [](GgufWriter& w) { w.u32("gemma4.attention.value_length", 16); },
                  Errc::kUnsupported, "wanted keys and values of one size"},
        BadConfig{"PartOfTheHeadRotates", [](GgufWriter& w) { w.u32("gemma4.rope.dimension_count", 8); },
                  Errc::kUnsupported, "gemma4.rope.dimension_count is 8, wanted the whole head, 32"},
        BadConfig{"RopeScaling", [](GgufWriter& w) { w.string("gemma4.rope.scaling.type", "yarn"); },
                  Errc::kUnsupported, "gemma4.rope.scaling.type is \"yarn\", wanted none"},
        BadConfig{"NoRopeBase", [](GgufWriter& w) { w.erase("gemma4.rope.freq_base"); }, Errc::kNotFound,
                  "gemma4.rope.freq_base is missing"},
        BadConfig{"NoRopeFreqs", [](GgufWriter& w) { w.find("rope_freqs.weight")->name = "other"; }, Errc::kNotFound,
                  "tensor rope_freqs.weight is missing, wanted 16 elements"},
        BadConfig{"OneWideLayer",
                  [](GgufWriter& w) {
                    w.find("blk.2.ffn_gate.weight")->extents = {32, 192};
                  },
                  Errc::kUnsupported, "gemma4.feed_forward_length of layer 2 is 192, wanted 96"},
        BadConfig{
            "OneLayerWithoutV",
            [](GgufWriter& w) {
              w.find("blk.3.attn_v.weight")->name = "other";
              w.bools("gemma4.attention.sliding_window_pattern", {true, true, false, false, true, true, true, false});
            },
            Errc::kUnsupported, "blk.3.attn_v.weight is missing, wanted all full layers alike"},
        BadConfig{"NoHeads",
                  [](GgufWriter& w) {
                    w.erase("gemma4.attention.head_count");
                    w.find("blk.0.attn_q.weight")->name = "other";
                  },
                  Errc::kNotFound, "gemma4.attention.head_count is missing"},
        BadConfig{"AllShared", [](GgufWriter& w) { w.u32("gemma4.attention.shared_kv_layers", 8); }, Errc::kMalformed,
                  "num_kv_shared_layers is 8"},
        BadConfig{"SmallTokenTable",
                  [](GgufWriter& w) {
                    w.find("per_layer_token_embd.weight")->extents = {128, 256};
                  },
                  Errc::kMalformed, "vocab_size_per_layer_input is 256"}),
    [](const auto& param_info) { return std::string(param_info.param.name); });

TEST(GgufConfig, AnAssistantIsNoBackbone) {
  const TemporaryDir dir;
  const fs::path assistant = write_gguf(kNanoAssistant, dir.path() / "a.gguf"),
                 backbone = write_gguf(kNanoBackbone, dir.path() / "b.gguf");
  expect_error(text_config(assistant), Errc::kUnsupported, "model_type is \"gemma4_assistant\"");
  expect_error(assistant_config(backbone), Errc::kUnsupported, "model_type is \"gemma4_text\"");
}

// ---------------------------------------------------------------- where the file is found

TEST(FindGguf, TakesTheOneModelOfADirectoryAndItsOwnConfig) {
  const TemporaryDir dir;
  write_gguf(kNanoBackbone, dir.path() / "model-Q8_0.gguf");
  for (const char* const other :
       {"mmproj-model.gguf", "model.mmproj-Q8_0.gguf", "model.imatrix.gguf", "mtp-model.gguf", "model-assistant.gguf"})
    dir.write(other, "no model");  // named as by llama.cpp, mradermacher and unsloth
  dir.write("config.json", R"({"model_type": "gemma4"})");  // as some repositories of GGUF files have
  EXPECT_EQ(Checkpoint::open(dir.path()).value().tensors().size(), 197u + 1u);
  EXPECT_EQ(text_config(dir.path()).value().hidden_size, 384);
  EXPECT_EQ(generation_config(dir.path()).value().eos_token_ids, (std::vector<TokenId>{1, 106, 50}));
  EXPECT_EQ(Tokenizer::load(model_at(dir.path())).value().vocab_size(), 8192);

  dir.write("other.gguf", "");
  expect_error(Checkpoint::open(dir.path()), Errc::kMismatch,
               "holds 2 GGUF models (model-Q8_0.gguf, other.gguf), wanted one");
  EXPECT_TRUE(Checkpoint::open(dir.path() / "model-Q8_0.gguf"));
}

TEST(FindGguf, LeavesADirectoryWithSafetensorsAlone) {
  const TemporaryDir dir;
  dir.write("model.safetensors", "");
  dir.write("model.gguf", "");
  EXPECT_EQ(find_gguf(dir.path()).value(), std::nullopt);
  EXPECT_EQ(find_gguf(dir.path() / "config.json").value(), std::nullopt);
  EXPECT_EQ(find_gguf(dir.path() / "nowhere").value(), std::nullopt);
  EXPECT_EQ(find_gguf(dir.path() / "nowhere.gguf").value(), dir.path() / "nowhere.gguf");
  expect_error(Checkpoint::open(dir.path() / "nowhere.gguf"), Errc::kNotFound, "cannot open");
}

// ---------------------------------------------------------------- split files

TEST(SplitGguf, ShardsAreOneModel) {
  const TemporaryDir dir;
  const fs::path first = write_gguf(kNanoAssistant, dir.path() / "m.gguf", {.shards = 3});
  EXPECT_EQ(first.filename(), "m-00001-of-00003.gguf");
  const TemporaryDir other;
  const auto whole = all_tensors(Checkpoint::open(write_gguf(kNanoAssistant, other.path() / "m.gguf")).value());
  for (const fs::path& path : {first, dir.path()}) {
    const Result<Checkpoint> checkpoint = Checkpoint::open(path);
    ASSERT_TRUE(checkpoint) << checkpoint.error().message;
    EXPECT_TRUE(all_tensors(*checkpoint) == whole);
    EXPECT_EQ(assistant_config(path).value().text.hidden_size, 192);
  }
}

TEST(SplitGguf, ShardsThatWereMergedAreOneFile) {
  const TemporaryDir dir;
  // llama-gguf-split --merge keeps the first shard's keys, but for the count.
  const fs::path merged = write_gguf(kNanoAssistant, dir.path() / "m.gguf", {.edit = [](GgufWriter& w) {
                                       w.u16("split.no", 0);
                                       w.u16("split.count", 0);
                                       w.i32("split.tensors.count", 51);
                                     }});
  const Result<Checkpoint> checkpoint = Checkpoint::open(merged);
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  EXPECT_FALSE(checkpoint->tensors().empty());
}

/// How many tensors one file lists.
std::size_t parse_shard(const fs::path& file) {
  const MappedFile mapped = MappedFile::open(file).value();
  return parse_gguf(mapped.bytes(), file).value().tensors.size();
}

TEST(SplitGguf, MissingOrWrongShardsAreRefused) {
  const TemporaryDir dir;
  const fs::path first = write_gguf(kNanoAssistant, dir.path() / "m.gguf", {.shards = 3});
  const fs::path second = dir.path() / "m-00002-of-00003.gguf", third = dir.path() / "m-00003-of-00003.gguf";
  expect_error(GgufModel::open(second), Errc::kMalformed,
               "is shard 2 of 3 (split.no 1), wanted the first: \"m-00001-of-00003.gguf\"");

  fs::rename(second, dir.path() / "kept");
  expect_error(GgufModel::open(first), Errc::kNotFound, "m-00002-of-00003.gguf: cannot open");
  fs::copy(third, second);
  expect_error(GgufModel::open(first), Errc::kMalformed, "m-00002-of-00003.gguf: split.no is 2 of 3, wanted 1 of 3");
  fs::copy(dir.path() / "kept", second, fs::copy_options::overwrite_existing);
  EXPECT_TRUE(GgufModel::open(first));

  fs::copy(first, dir.path() / "renamed.gguf");
  expect_error(GgufModel::open(dir.path() / "renamed.gguf"), Errc::kMalformed,
               "split.count is 3, wanted a file name that ends in -00001-of-00003.gguf");

  // Shard 3 with no tensors, then with one of shard 1's.
  GgufWriter last;
  last.u16("split.no", 2);
  last.u16("split.count", 3);
  std::ofstream(third, std::ios::binary) << last.bytes();
  expect_error(GgufModel::open(first), Errc::kMalformed, "split.tensors.count is 51, but the 3 shards hold");
  const std::size_t missing = 51 - parse_shard(first) - parse_shard(second);
  for (std::size_t i = 0; i < missing; ++i)
    last.tensor({i == 0 ? "rope_freqs.weight" : fmt::format("t{}", i), {1}, 0, raw_bytes(1.0f)});
  std::ofstream(third, std::ios::binary) << last.bytes();
  expect_error(GgufModel::open(first), Errc::kMalformed, "tensor \"rope_freqs.weight\" is in two shards");
}

// ---------------------------------------------------------------- tensors that are not there, or twice

TEST(GgufTensors, ALayerWithoutOutputScaleHasTheScalarOne) {
  const TemporaryDir dir;
  const fs::path file =
      write_gguf(kNanoAssistant, dir.path() / "m.gguf", {.edit = [](GgufWriter& w) {
                   std::erase_if(w.tensors, [](const auto& t) { return t.name == "blk.2.layer_output_scale.weight"; });
                 }});
  const Checkpoint checkpoint = Checkpoint::open(file).value();
  std::vector<float> one(1);
  ASSERT_TRUE(read_f32(*checkpoint.require("model.layers.2.layer_scalar", {1}).value(), one));
  EXPECT_EQ(one[0], 1);
}

TEST(GgufTensors, TwoTensorsOfOneNameAreRefused) {
  const TemporaryDir dir;
  const fs::path file = write_gguf(kNanoAssistant, dir.path() / "m.gguf", {.edit = [](GgufWriter& w) {
                                     w.tensor({"model.norm.weight", {1}, 0, raw_bytes(1.0f)});
                                   }});
  expect_error(Checkpoint::open(file), Errc::kMalformed, "two tensors are called \"model.norm.weight\"");
}

// ---------------------------------------------------------------- metadata values

TEST(GgufMetadata, ReadsEveryTypeAndNamesWhatIsWrong) {
  GgufWriter w;
  w.put("u8", GgufValueType::kU8, raw_bytes<std::uint8_t>(200));
  w.put("i8", GgufValueType::kI8, raw_bytes<std::int8_t>(-5));
  w.u16("u16", 65535);
  w.put("i16", GgufValueType::kI16, raw_bytes<std::int16_t>(-300));
  w.u32("u32", 4000000000);
  w.i32("i32", -7);
  w.put("i64", GgufValueType::kI64, raw_bytes<std::int64_t>(-1));
  w.put("u64", GgufValueType::kU64, raw_bytes<std::uint64_t>(12345678901));
  w.put("big", GgufValueType::kU64, raw_bytes(~std::uint64_t{0}));
  w.f32("f32", 0.5f);
  w.put("f64", GgufValueType::kF64, raw_bytes(0.1));
  w.f32("nan", NAN);
  w.boolean("yes", true);
  w.string("text", "a\nb");
  w.bools("bools", {true, false});
  w.i32s("i32s", {-1, 2});
  w.strings("strings", {"", "two"});
  w.array("none", GgufValueType::kString, {});
  w.array("floats", GgufValueType::kF32, {raw_bytes(1.0f)});
  const std::string bytes = w.bytes();
  const GgufFile file = parse_gguf(as_bytes(bytes), "x.gguf").value();
  const GgufMetadata& m = file.metadata;

  const auto integer = [&](const char* key) { return m.get<std::int64_t>(key).value(); };
  EXPECT_EQ(integer("u8"), 200);
  EXPECT_EQ(integer("i8"), -5);
  EXPECT_EQ(integer("u16"), 65535);
  EXPECT_EQ(integer("i16"), -300);
  EXPECT_EQ(integer("u32"), 4000000000);
  EXPECT_EQ(integer("i32"), -7);
  EXPECT_EQ(integer("i64"), -1);
  EXPECT_EQ(integer("u64"), 12345678901);
  EXPECT_EQ(m.get<double>("f32").value(), 0.5);
  EXPECT_EQ(m.get<double>("f64").value(), 0.1);
  EXPECT_EQ(m.get<double>("i32").value(), -7);
  EXPECT_EQ(m.get<bool>("yes").value(), true);
  EXPECT_EQ(m.get<std::string_view>("text").value(), "a\nb");
  EXPECT_EQ(m.get<std::vector<std::int64_t>>("bools").value(), (std::vector<std::int64_t>{1, 0}));
  EXPECT_EQ(m.get<std::vector<std::int64_t>>("i32s").value(), (std::vector<std::int64_t>{-1, 2}));
  EXPECT_EQ(m.get<std::vector<std::string_view>>("strings").value(), (std::vector<std::string_view>{"", "two"}));
  EXPECT_TRUE(m.get<std::vector<std::string_view>>("none").value().empty());
  EXPECT_TRUE(m.is_array("bools") && !m.is_array("yes") && !m.is_array("nowhere") && m.contains("yes") &&
              !m.contains("nowhere"));
  EXPECT_EQ(m.find<bool>("nowhere").value(), std::nullopt);

  expect_error(m.get<bool>("nowhere"), Errc::kNotFound, "x.gguf: nowhere is missing, wanted a bool");
  expect_error(m.get<bool>("u8"), Errc::kMalformed, "x.gguf: u8 is of type u8, wanted a bool");
  expect_error(m.get<std::int64_t>("f32"), Errc::kMalformed, "f32 is of type f32, wanted a whole number");
  expect_error(m.get<std::int64_t>("big"), Errc::kMalformed, "big is of type u64, wanted a whole number");
  expect_error(m.get<std::int64_t>("i32s"), Errc::kMalformed, "i32s is an array of 2 i32, wanted a whole number");
  expect_error(m.get<double>("nan"), Errc::kMalformed, "nan is of type f32, wanted a finite number");
  expect_error(m.get<double>("floats"), Errc::kMalformed, "floats is an array of 1 f32, wanted a finite number");
  expect_error(m.get<std::string_view>("strings"), Errc::kMalformed,
               "strings is an array of 2 string, wanted a string");
  expect_error(m.get<std::vector<std::int64_t>>("strings"), Errc::kMalformed,
               "wanted an array of whole numbers or bools");
  expect_error(m.get<std::vector<std::string_view>>("text"), Errc::kMalformed,
               "text is of type string, wanted an array of strings");
}

// ---------------------------------------------------------------- bad files

/// A small good file: two keys, two tensors.
GgufWriter small() {
  GgufWriter w;
  w.u32("answer", 42);
  w.strings("words", {"one", "two"});
  w.tensor({"a", {32, 2}, gguf_tensor_type(DType::kQ8_0), std::string(68, 'q')});
  w.tensor({"b", {3}, gguf_tensor_type(DType::kF32), std::string(12, '\0')});
  return w;
}
std::string with_tensor(const GgufWriter::Tensor& tensor) {
  GgufWriter w = small();
  w.tensor(tensor);
  return w.bytes();
}
std::string with_key(GgufValueType type, const std::string& value) {
  GgufWriter w = small();
  w.put("key", type, value);
  return w.bytes();
}
std::string with(const std::function<void(GgufWriter&)>& edit) {
  GgufWriter w = small();
  edit(w);
  return w.bytes();
}
std::string patched(std::size_t at, const std::string& bytes) {
  return small().bytes().replace(at, bytes.size(), bytes);
}
template <typename T>
std::string array_header(GgufValueType type, T count) {
  return raw_bytes(static_cast<std::uint32_t>(type)) + raw_bytes<std::uint64_t>(count);
}

struct BadFile {
  const char* name;
  std::string bytes;
  Errc code;
  const char* message;
};
void PrintTo(const BadFile& bad, std::ostream* out) { *out << bad.name; }
class ParseGgufRefuses : public testing::TestWithParam<BadFile> {};

TEST_P(ParseGgufRefuses, WithOneLineThatSaysWhy) {
  const Result<GgufFile> result = parse_gguf(as_bytes(GetParam().bytes), "dir/bad.gguf");
  expect_error(result, GetParam().code, GetParam().message);
  EXPECT_TRUE(result.error().message.starts_with("dir/bad.gguf: ")) << result.error().message;
}

std::string with_a_key_twice() {
  GgufWriter w = small();
  w.u32("twice_", 1);
  w.u32("twice2", 1);
  std::string bytes = w.bytes();
  return bytes.replace(bytes.find("twice2"), 6, "twice_");
}

INSTANTIATE_TEST_SUITE_P(
    Each, ParseGgufRefuses,
    testing::Values(
        BadFile{"Empty", "", Errc::kMalformed,
                "does not start with \"GGUF\", so it is no GGUF file (it is 0 bytes long)"},
        BadFile{"Magic", patched(0, "GGML"), Errc::kMalformed, "does not start with \"GGUF\""},
        BadFile{"VersionOne", patched(4, raw_bytes(1u)), Errc::kUnsupported, "has GGUF version 1, wanted 2 or 3"},
        BadFile{"VersionFour", patched(4, raw_bytes(4u)), Errc::kUnsupported, "has GGUF version 4, wanted 2 or 3"},
        BadFile{"VersionZero", patched(4, raw_bytes(0u)), Errc::kUnsupported, "has GGUF version 0, wanted 2 or 3"},
        BadFile{"BigEndian", patched(4, raw_bytes(0x03000000u)), Errc::kUnsupported,
                "is big endian, wanted a little endian file"},
        BadFile{"TensorCount", patched(8, raw_bytes(~std::uint64_t{0})), Errc::kMalformed, "(cut short?)"},
        BadFile{"KeyCount", patched(16, raw_bytes(~std::uint64_t{0})), Errc::kMalformed, "(cut short?)"},
        BadFile{"KeyLength", patched(24, raw_bytes(~std::uint64_t{0})), Errc::kMalformed,
                "a metadata key at byte 32 takes 18446744073709551615 bytes, but"},
        BadFile{"LongKey", with([](GgufWriter& w) { w.u32(std::string(65536, 'k'), 1); }), Errc::kMalformed,
                "is 65536 bytes long, wanted at most 65535"},
        BadFile{"ValueType", with_key(static_cast<GgufValueType>(13), ""), Errc::kUnsupported,
                "the value of \"key\" has type 13, wanted one from 0 to 12"},
        BadFile{"ElementType", with_key(GgufValueType::kArray, array_header(static_cast<GgufValueType>(99), 0u)),
                Errc::kUnsupported, "has type 99"},
        BadFile{"NestedArray",
                with_key(GgufValueType::kArray,
                         array_header(GgufValueType::kArray, 1u) + array_header(GgufValueType::kU8, 0u)),
                Errc::kUnsupported, "the value of \"key\" is an array of arrays, wanted no nested ones"},
        BadFile{"ArrayLength",
                with_key(GgufValueType::kArray, array_header(GgufValueType::kU64, std::uint64_t{1} << 61)),
                Errc::kMalformed, "the value of \"key\" at byte"},
        BadFile{"StringArrayLength",
                with_key(GgufValueType::kArray, array_header(GgufValueType::kString, ~std::uint64_t{0})),
                Errc::kMalformed, "(cut short?)"},
        BadFile{"StringLength", with_key(GgufValueType::kString, raw_bytes(std::uint64_t{1} << 63)), Errc::kMalformed,
                "takes 9223372036854775808 bytes, but"},
        BadFile{"DuplicateKey", with_a_key_twice(), Errc::kMalformed, "metadata key \"twice_\" is given twice"},
        BadFile{"DuplicateTensor", with_tensor({"a", {1}, 0, raw_bytes(1.0f)}), Errc::kMalformed,
                "tensor \"a\" is listed twice"},
        BadFile{"NameLength", patched(small().bytes().find(raw_string("a")), raw_bytes(std::uint64_t{1} << 40)),
                Errc::kMalformed, "a tensor's name at byte"},
        BadFile{"Rank", with_tensor({"c", {1, 1, 1, 1, 1}, 0, raw_bytes(1.0f)}), Errc::kUnsupported,
                "tensor \"c\" has 5 dimensions, wanted at most 4"},
        BadFile{"NegativeExtent", with_tensor({"c", {std::uint64_t{1} << 63}, 0, ""}), Errc::kMalformed,
                "tensor \"c\" has an extent of 9223372036854775808, so that its elements overflow 63 bits"},
        BadFile{"ExtentsOverflow", with_tensor({"c", {std::uint64_t{1} << 32, std::uint64_t{1} << 32}, 0, ""}),
                Errc::kMalformed, "overflow 63 bits"},
        BadFile{"BytesOverflow", with_tensor({"c", {std::uint64_t{1} << 62}, 0, ""}), Errc::kMalformed,
                "takes more than 2^63 bytes"},
        BadFile{"UnknownTensorType", with_tensor({"c", {1}, 1000, ""}), Errc::kUnsupported,
                "tensor \"c\" has type 1000, wanted one of F32, F16, Q4_0"},
        BadFile{"UnreadTensorType", with_tensor({"c", {256}, 19, ""}), Errc::kUnsupported,
                "tensor \"c\" has type 19 (IQ1_S), wanted one of F32"},
        BadFile{"RemovedTensorType", with_tensor({"c", {256}, 4, ""}), Errc::kUnsupported,
                "tensor \"c\" has type 4, wanted"},
        BadFile{"HalfABlock", with_tensor({"c", {48}, gguf_tensor_type(DType::kQ4_0), ""}), Errc::kMalformed,
                "tensor \"c\" has rows of 48 elements, wanted a multiple of 32 for Q4_0"},
        BadFile{"BlocksAcrossRows", with_tensor({"c", {16, 2}, gguf_tensor_type(DType::kQ4_0), ""}), Errc::kMalformed,
                "has rows of 16 elements"},
        BadFile{"HalfASuperBlock", with_tensor({"c", {384}, gguf_tensor_type(DType::kQ6_K), ""}), Errc::kMalformed,
                "wanted a multiple of 256 for Q6_K"},
        BadFile{"ScalarBlock", with_tensor({"c", {}, gguf_tensor_type(DType::kQ8_0), ""}), Errc::kMalformed,
                "has rows of 1 elements"},
        BadFile{"Offset", with_tensor({"c", {1}, 0, raw_bytes(1.0f), 1 << 20}), Errc::kMalformed,
                "tensor \"c\" takes 4 bytes at offset 1048576, but the file holds"},
        BadFile{"OffsetOverflow", with_tensor({"c", {1}, 0, raw_bytes(1.0f), ~std::uint64_t{31}}), Errc::kMalformed,
                "at offset 18446744073709551584, but"},
        BadFile{"MisalignedOffset", with_tensor({"c", {1}, 0, raw_bytes(1.0f), 33}), Errc::kMalformed,
                "tensor \"c\" lies at offset 33, wanted a multiple of 32"},
        BadFile{"Overlap", with_tensor({"c", {1}, 0, raw_bytes(1.0f), 32}), Errc::kMalformed,
                "tensors \"a\" and \"c\" overlap"},
        BadFile{"BeyondTheFile", with_tensor({"c", {1000}, 0, raw_bytes(1.0f)}), Errc::kMalformed,
                "tensor \"c\" takes 4000 bytes at offset"},
        BadFile{"AlignmentZero", with([](GgufWriter& w) { w.u32("general.alignment", 0); }), Errc::kMalformed,
                "general.alignment is 0, wanted a power of two"},
        BadFile{"AlignmentOdd", with([](GgufWriter& w) { w.u32("general.alignment", 48); }), Errc::kMalformed,
                "general.alignment is 48, wanted a power of two"},
        BadFile{"AlignmentNegative", with([](GgufWriter& w) { w.i32("general.alignment", -32); }), Errc::kMalformed,
                "general.alignment is -32"},
        BadFile{"AlignmentHuge", with([](GgufWriter& w) {
                  w.put("general.alignment", GgufValueType::kU64, raw_bytes(std::uint64_t{1} << 62));
                }),
                Errc::kMalformed, "general.alignment is 4611686018427387904"},
        BadFile{"AlignmentText", with([](GgufWriter& w) { w.string("general.alignment", "32"); }), Errc::kMalformed,
                "general.alignment is of type string, wanted a whole number"}),
    [](const auto& param_info) { return std::string(param_info.param.name); });

TEST(ParseGguf, ReadsBothVersionsAndOtherAlignments) {
  for (const std::uint32_t version : {2u, 3u}) {
    for (const std::uint64_t alignment : {8u, 32u, 4096u}) {
      GgufWriter w = small();
      w.version = version;
      w.alignment = alignment;
      w.u32("general.alignment", static_cast<std::int64_t>(alignment));
      w.tensor({"empty", {0}, 0, ""});
      const std::string bytes = w.bytes();
      const Result<GgufFile> file = parse_gguf(as_bytes(bytes), "x.gguf");
      ASSERT_TRUE(file) << file.error().message;
      ASSERT_EQ(file->tensors.size(), 3u);
      EXPECT_EQ(file->tensors[0].shape, (std::vector<std::int64_t>{2, 32}));
      EXPECT_EQ(static_cast<char>(file->tensors[0].bytes[0]), 'q');
      EXPECT_EQ(file->tensors[1].bytes.size(), 12u);
    }
  }
}

TEST(ParseGguf, RefusesAHeaderOverTheLimit) {
  const std::string bytes = with_key(GgufValueType::kString, raw_string(std::string(100'000'000, 'x')));
  expect_error(parse_gguf(as_bytes(bytes), "x.gguf"), Errc::kOutOfRange,
               "metadata and tensor list take more than 100000000 bytes");
}

TEST(ParseGguf, RefusesEveryTruncation) {
  const std::string bytes = small().bytes();
  ASSERT_TRUE(parse_gguf(as_bytes(bytes), "x.gguf"));
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const std::string cut = bytes.substr(0, size);
    expect_error(parse_gguf(as_bytes(cut), "x.gguf"), Errc::kMalformed, "x.gguf: ");
  }
}

TEST(ParseGguf, NoChangedByteCrashes) {
  const std::string bytes = small().bytes();
  std::mt19937 random(3);
  for (int round = 0; round < 20000; ++round) {
    std::string changed = bytes;
    for (int i = 0; i < 1 + round % 3; ++i) changed[random() % changed.size()] = static_cast<char>(random());
    const Result<GgufFile> file = parse_gguf(as_bytes(changed), "x.gguf");
    if (!file) {
      EXPECT_EQ(file.error().message.find('\n'), std::string::npos);
    }
  }
}

// ---------------------------------------------------------------- stop and suppressed tokens

TEST(GgufTokens, EndsAreTheFilesOwnAndThoseKnownByTheirText) {
  const TemporaryDir dir;
  const auto ends = [&](const std::function<void(GgufWriter&)>& edit) {
    return generation_config(write_gguf(kNanoAssistant, dir.path() / "m.gguf", {.edit = edit}));
  };
  EXPECT_EQ(ends({}).value().eos_token_ids, (std::vector<TokenId>{1, 106, 50}));
  EXPECT_EQ(ends([](GgufWriter& w) { w.u32("tokenizer.ggml.eot_token_id", 106); }).value().eos_token_ids,
            (std::vector<TokenId>{1, 106, 50}));
  EXPECT_EQ(ends([](GgufWriter& w) { w.u32("tokenizer.ggml.eos_token_id", 106); }).value().eos_token_ids,
            (std::vector<TokenId>{106, 1, 50}));
  EXPECT_EQ(ends([](GgufWriter& w) { w.u32("tokenizer.ggml.eot_token_id", 7); }).value().eos_token_ids,
            (std::vector<TokenId>{1, 7, 106, 50}));
  EXPECT_EQ(ends([](GgufWriter& w) { w.i32s("tokenizer.ggml.token_type", std::vector<std::int64_t>(8192, 1)); })
                .value()
                .eos_token_ids,
            (std::vector<TokenId>{1, 106, 50}))
      << "whatever the converter calls them";
  expect_error(ends([](GgufWriter& w) { w.i32("tokenizer.ggml.eos_token_id", -1); }), Errc::kMalformed,
               "tokenizer.ggml.eos_token_id is -1, wanted a token id");
}

TEST(GgufTokens, AreSampledAsTheFileAdvises) {
  const TemporaryDir dir;
  const auto advice = [&](const std::function<void(GgufWriter&)>& edit) {
    return generation_config(write_gguf(kNanoAssistant, dir.path() / "m.gguf", {.edit = edit}));
  };
  const GenerationConfig stated = advice([](GgufWriter& w) {
                                    w.f32("general.sampling.temp", 0.7f);
                                    w.i32("general.sampling.top_k", 64);
                                    w.f32("general.sampling.top_p", 0.95f);
                                  }).value();
  EXPECT_EQ(std::tuple(stated.temperature, stated.top_k, stated.top_p), std::tuple(0.7f, 64, 0.95f));
  const GenerationConfig silent = advice({}).value();
  EXPECT_FALSE(silent.temperature || silent.top_k || silent.top_p);
  expect_error(advice([](GgufWriter& w) { w.f32("general.sampling.top_p", 7); }), Errc::kMalformed,
               "top_p is 7.0, wanted a number from");
}

TEST(GgufTokens, SuppressedOnesComeFromEitherFormat) {
  const TemporaryDir dir;
  const auto of_gguf = [&](const std::function<void(GgufWriter&)>& edit) {
    return generation_config(write_gguf(kNanoAssistant, dir.path() / "m.gguf", {.edit = edit}));
  };
  EXPECT_TRUE(of_gguf({}).value().suppress_tokens.empty());
  EXPECT_EQ(of_gguf([](GgufWriter& w) {
              w.i32s("tokenizer.ggml.suppress_tokens", {5, 6});
            })
                .value()
                .suppress_tokens,
            (std::vector<TokenId>{5, 6}));
  expect_error(of_gguf([](GgufWriter& w) { w.i32s("tokenizer.ggml.suppress_tokens", {-5}); }), Errc::kMalformed,
               "suppress_tokens is -5, wanted a token id");

  const TemporaryDir hugging_face;
  EXPECT_TRUE(generation_config(hugging_face.path()).value().suppress_tokens.empty());
  const auto of_json = [&](const char* json) {
    hugging_face.write("generation_config.json", json);
    return generation_config(hugging_face.path());
  };
  EXPECT_EQ(of_json(R"({"suppress_tokens": [258882, 258883]})").value().suppress_tokens,
            (std::vector<TokenId>{258882, 258883}));
  EXPECT_TRUE(of_json(R"({"suppress_tokens": null})").value().suppress_tokens.empty());
  EXPECT_TRUE(of_json(R"({"suppress_tokens": []})").value().suppress_tokens.empty());
  expect_error(of_json(R"({"suppress_tokens": ["a"]})"), Errc::kMalformed,
               "suppress_tokens is \"a\", wanted a token id");
}

// ---------------------------------------------------------------- tokenizer

TEST(GgufTokenizer, GivesTheIdsOfTheJsonOnEveryGoldenCase) {
  const TemporaryDir dir;
  const Tokenizer json = Tokenizer::load(model_at(kNanoBackbone)).value();
  const Result<Tokenizer> gguf = Tokenizer::load(model_at(write_gguf(kNanoBackbone, dir.path() / "m.gguf")));
  ASSERT_TRUE(gguf) << gguf.error().message;
  ASSERT_EQ(gguf->vocab_size(), json.vocab_size());
  for (TokenId id = 0; id < json.vocab_size(); ++id) {
    ASSERT_EQ(gguf->token_text(id), json.token_text(id));
    ASSERT_EQ(gguf->plain_text(id), json.plain_text(id));
    ASSERT_EQ(gguf->is_special(id), json.is_special(id)) << json.token_text(id);
  }
  std::size_t cases = 0;
  for (const char* golden : {"tests/goldens/nano/tokenizer_golden.json", "tests/goldens/tokenizer/nano_cases.json"}) {
    const nlohmann::json root = nlohmann::json::parse(std::ifstream(kSource / golden));
    const nlohmann::json flat = root.flatten();  // every string in them is a text or a token
    for (const auto& [where, value] : flat.items()) {
      if (!value.is_string()) continue;
      const auto text = value.get<std::string>();
      for (const bool parse_special : {true, false}) {
        const std::vector<TokenId> ids = json.encode(text, parse_special);
        ASSERT_EQ(gguf->encode(text, parse_special), ids) << where;
        ASSERT_EQ(gguf->decode(ids, parse_special), json.decode(ids, parse_special)) << where;
      }
      ++cases;
    }
  }
  EXPECT_GT(cases, 100u);
}

// The converter calls controls "normal" that tokenizer_config.json does not name: with nano's it does so with these.
TEST(GgufTokenizer, ControlsThatTheConverterCallsNormalAreSpecial) {
  const Tokenizer json = Tokenizer::load(model_at(kNanoBackbone)).value();
  const TemporaryDir dir;
  const auto forget = [&](GgufWriter& w) {
    std::vector<std::int64_t> types(static_cast<std::size_t>(json.vocab_size()), 1);
    types[0] = 3, types[1] = 3, types[2] = 3, types[3] = 2;
    for (TokenId byte = 0; byte < json.vocab_size(); ++byte) {
      const std::string_view text = json.token_text(byte);
      if (text.size() == 6 && text.starts_with("<0x")) types[static_cast<std::size_t>(byte)] = 6;
    }
    w.i32s("tokenizer.ggml.token_type", types);
  };
  const Result<Tokenizer> gguf =
      Tokenizer::load(model_at(write_gguf(kNanoBackbone, dir.path() / "m.gguf", {.edit = forget})));
  ASSERT_TRUE(gguf) << gguf.error().message;
  for (const char* control : {"<|think|>", "<|tool>", "<tool|>", "<|tool_call>", "<|turn>", "<turn|>", "<|channel>"}) {
    const TokenId id = json.find(control).value();
    EXPECT_TRUE(gguf->is_special(id)) << control;
    EXPECT_EQ(gguf->encode(control), std::vector<TokenId>{id});
    EXPECT_EQ(gguf->encode(control, /*parse_special=*/false), json.encode(control, /*parse_special=*/false));
  }
  Conversation thinks;
  thinks.messages.emplace_back().content = "Hi";
  thinks.tools.emplace_back().name = "weather";
  thinks.thinking = true;
  const auto prompt = render_chat(*gguf, {}, thinks);
  ASSERT_TRUE(prompt) << prompt.error().message;
  EXPECT_EQ(*prompt, render_chat(json, {}, thinks).value());
}

TEST(GgufTokenizer, WhatAMergeMakesIsTextWhateverItLooksLike) {
  GgufWriter w;
  w.string("tokenizer.ggml.model", "gemma4");
  w.strings("tokenizer.ggml.tokens", {"<unk>", "<|", "a>", "<|a>", "<|b>"});
  w.i32s("tokenizer.ggml.token_type", {2, 1, 1, 1, 1});
  w.strings("tokenizer.ggml.merges", {"<| a>"});
  w.u32("tokenizer.ggml.unknown_token_id", 0);
  const std::string bytes = w.bytes();
  const GgufFile file = parse_gguf(as_bytes(bytes), "x.gguf").value();
  const Tokenizer tokenizer = Tokenizer::from_gguf(file.metadata).value();
  EXPECT_FALSE(tokenizer.is_special(3));
  EXPECT_TRUE(tokenizer.is_special(4));
}

struct BadTokenizer {
  const char* name;
  std::function<void(GgufWriter&)> edit;
  Errc code;
  const char* message;
};
void PrintTo(const BadTokenizer& bad, std::ostream* out) { *out << bad.name; }
class GgufTokenizerRefuses : public testing::TestWithParam<BadTokenizer> {};

/// Five tokens, one merge.
GgufWriter tiny_tokenizer() {
  GgufWriter w;
  w.string("tokenizer.ggml.model", "gemma4");
  w.strings("tokenizer.ggml.tokens", {"<unk>", "a", "b", "ab", "<|turn>"});
  w.i32s("tokenizer.ggml.token_type", {2, 1, 1, 1, 3});
  w.strings("tokenizer.ggml.merges", {"a b"});
  w.u32("tokenizer.ggml.unknown_token_id", 0);
  return w;
}

TEST(GgufTokenizer, TinyOneWorks) {
  const std::string bytes = tiny_tokenizer().bytes();
  const GgufFile file = parse_gguf(as_bytes(bytes), "x.gguf").value();
  const Tokenizer tokenizer = Tokenizer::from_gguf(file.metadata).value();
  EXPECT_EQ(tokenizer.encode("abba<|turn>??"), (std::vector<TokenId>{3, 2, 1, 4, 0}));
  EXPECT_EQ(tokenizer.name(), "x.gguf");
}

TEST_P(GgufTokenizerRefuses, WithOneLineThatSaysWhy) {
  GgufWriter w = tiny_tokenizer();
  GetParam().edit(w);
  const std::string bytes = w.bytes();
  const GgufFile file = parse_gguf(as_bytes(bytes), "x.gguf").value();
  expect_error(Tokenizer::from_gguf(file.metadata), GetParam().code, GetParam().message);
}

INSTANTIATE_TEST_SUITE_P(
    Each, GgufTokenizerRefuses,
    testing::Values(
        BadTokenizer{"Model", [](GgufWriter& w) { w.string("tokenizer.ggml.model", "llama"); }, Errc::kUnsupported,
                     "x.gguf: tokenizer.ggml.model is \"llama\", want \"gemma4\""},
        BadTokenizer{"NoModel", [](GgufWriter& w) { w.erase("tokenizer.ggml.model"); }, Errc::kNotFound,
                     "tokenizer.ggml.model is missing"},
        BadTokenizer{"SpacePrefix", [](GgufWriter& w) { w.boolean("tokenizer.ggml.add_space_prefix", true); },
                     Errc::kUnsupported, "tokenizer.ggml.add_space_prefix is true, want false"},
        BadTokenizer{"NoTokens", [](GgufWriter& w) { w.strings("tokenizer.ggml.tokens", {}); }, Errc::kMalformed,
                     "tokenizer.ggml.tokens is an array of 0, want one of 1 to 4194304"},
        BadTokenizer{"FewTypes", [](GgufWriter& w) { w.i32s("tokenizer.ggml.token_type", {1}); }, Errc::kMalformed,
                     "tokenizer.ggml.token_type is an array of 1, want one of 5, as tokens"},
        BadTokenizer{"NoUtf8",
                     [](GgufWriter& w) {
                       w.strings("tokenizer.ggml.tokens", {"<unk>", "a", "b", "ab", "\xff"});
                     },
                     Errc::kMalformed, "tokenizer.ggml.tokens[4] is \"\\xff\", want valid UTF-8"},
        BadTokenizer{"ByteToken",
                     [](GgufWriter& w) {
                       w.i32s("tokenizer.ggml.token_type", {2, 6, 1, 1, 3});
                     },
                     Errc::kMalformed, "tokenizer.ggml.tokens[1] is \"a\", want <0xNN>"},
        BadTokenizer{"NoMerges", [](GgufWriter& w) { w.erase("tokenizer.ggml.merges"); }, Errc::kNotFound,
                     "tokenizer.ggml.merges is missing"},
        BadTokenizer{"MergeWithoutSpace", [](GgufWriter& w) { w.strings("tokenizer.ggml.merges", {"ab"}); },
                     Errc::kMalformed, "tokenizer.ggml.merges[0] is \"ab\", want \"LEFT RIGHT\""},
        BadTokenizer{"MergeOfOther", [](GgufWriter& w) { w.strings("tokenizer.ggml.merges", {"a c"}); },
                     Errc::kMalformed, "tokenizer.ggml.merges[0] is \"a c\", want made of tokens, which \"c\" is not"},
        BadTokenizer{"MergeToOther", [](GgufWriter& w) { w.strings("tokenizer.ggml.merges", {"b a"}); },
                     Errc::kMalformed, "which \"ba\" is not"},
        BadTokenizer{"Unknown", [](GgufWriter& w) { w.u32("tokenizer.ggml.unknown_token_id", 5); }, Errc::kMalformed,
                     "tokenizer.ggml.unknown_token_id is 5, want from 0 to 4"},
        BadTokenizer{"NoUnknown", [](GgufWriter& w) { w.erase("tokenizer.ggml.unknown_token_id"); }, Errc::kMalformed,
                     "want a token for unknown characters, as 256 of 256 byte tokens are missing"}),
    [](const auto& param_info) { return std::string(param_info.param.name); });

}  // namespace
}  // namespace outrider
