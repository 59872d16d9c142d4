// The towers of a GGUF, in a file of its own as llama.cpp's converter writes it, against the same towers from
// safetensors: the names and keys here are gguf-py 0.19's.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "common/model/audio/sound_encoder.h"
#include "common/model/checkpoint/checkpoint.h"
#include "common/model/checkpoint/gguf.h"
#include "common/model/vision/picture_encoder.h"
#include "common/os/files.h"
#include "tests/support/ggml_blocks.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/model_at.h"
#include "tests/support/temporary_dir.h"

namespace outrider {
namespace {
namespace fs = std::filesystem;

fs::path seeing() { return fs::path(OUTRIDER_SOURCE_DIR) / "tests/goldens/multimodal-e4b/backbone"; }

std::vector<float> floats_of(const TensorEntry& entry) {
  std::vector<float> values(static_cast<std::size_t>(entry.element_count()));
  EXPECT_TRUE(read_f32(entry, values));
  return values;
}

void add_hearing_keys(GgufWriter& writer, const AudioConfig& audio) {
  writer.boolean("clip.has_audio_encoder", true);
  writer.string("clip.audio.projector_type", "gemma4a");
  writer.u32("clip.audio.embedding_length", audio.hidden_size);
  writer.u32("clip.audio.feed_forward_length", 4 * audio.hidden_size);
  writer.u32("clip.audio.block_count", audio.num_hidden_layers);
  writer.u32("clip.audio.attention.head_count", audio.num_attention_heads);
  writer.u32("clip.audio.num_mel_bins", 128);
  writer.f32("clip.audio.attention.layer_norm_epsilon", 1e-5F);
}

/// What a tensor of an audio tower is called, and made into, by the converter; empty for another's.
std::string hearing_name(const std::string& name, std::vector<float>& values, std::vector<std::uint64_t>& extents) {
  static const std::map<std::string, std::string> of_hearing = {
      {"model.audio_tower.subsample_conv_projection.layer0.conv.weight", "a.conv1d.0.weight"},
      {"model.audio_tower.subsample_conv_projection.layer1.conv.weight", "a.conv1d.1.weight"},
      {"model.audio_tower.subsample_conv_projection.layer0.norm.weight", "a.conv1d.0.norm.weight"},
      {"model.audio_tower.subsample_conv_projection.layer1.norm.weight", "a.conv1d.1.norm.weight"},
      {"model.audio_tower.subsample_conv_projection.input_proj_linear.weight", "a.input_projection.weight"},
      {"model.audio_tower.output_proj.weight", "a.pre_encode.out.weight"},
      {"model.audio_tower.output_proj.bias", "a.pre_encode.out.bias"},
      {"model.embed_audio.embedding_projection.weight", "mm.a.input_projection.weight"}};
  static const std::map<std::string, std::string> of_audio_layer = {
      {"norm_pre_attn", "attn_pre_norm"},
      {"norm_post_attn", "attn_post_norm"},
      {"norm_out", "ln2"},
      {"feed_forward1.pre_layer_norm", "ffn_norm"},
      {"feed_forward1.post_layer_norm", "ffn_post_norm"},
      {"feed_forward1.ffw_layer_1", "ffn_up"},
      {"feed_forward1.ffw_layer_2", "ffn_down"},
      {"feed_forward2.pre_layer_norm", "ffn_norm_1"},
      {"feed_forward2.post_layer_norm", "ffn_post_norm_1"},
      {"feed_forward2.ffw_layer_1", "ffn_up_1"},
      {"feed_forward2.ffw_layer_2", "ffn_down_1"},
      {"lconv1d.pre_layer_norm", "conv_norm"},
      {"lconv1d.conv_norm", "norm_conv"},
      {"lconv1d.depthwise_conv1d", "conv_dw"},
      {"lconv1d.linear_start", "conv_pw1"},
      {"lconv1d.linear_end", "conv_pw2"},
      {"self_attn.q_proj", "attn_q"},
      {"self_attn.k_proj", "attn_k"},
      {"self_attn.v_proj", "attn_v"},
      {"self_attn.post", "attn_out"},
      {"self_attn.relative_k_proj", "attn_k_rel"},
      {"self_attn.per_dim_scale", "per_dim_scale"}};
  const std::string audio_layers = "model.audio_tower.layers.";
  if (of_hearing.contains(name)) return of_hearing.at(name);
  if (!name.starts_with(audio_layers)) return "";
  std::string rest = name.substr(audio_layers.size());
  if (const std::size_t linear = rest.find(".linear.weight"); linear != rest.npos) rest.erase(linear, 7);
  if (rest.ends_with("per_dim_scale")) {
    rest += ".weight";
    for (float& value : values) value = std::log1p(std::exp(value));
  }
  if (extents.size() == 3) extents.erase(extents.begin() + 1);  // the convolution's one channel
  const std::size_t first = rest.find('.'), last = rest.rfind('.');
  return fmt::format("a.blk.{}.{}{}", rest.substr(0, first),
                     of_audio_layer.at(rest.substr(first + 1, last - first - 1)), rest.substr(last));
}

/// What llama.cpp's converter makes of a tower.
GgufWriter projector_of(const fs::path& backbone) {
  const Checkpoint checkpoint = Checkpoint::open(backbone).value();
  const VisionConfig config = load_vision_config(model_at(backbone)).value();
  GgufWriter writer;
  writer.string("general.architecture", "clip");
  writer.string("general.type", "mmproj");
  writer.boolean("clip.has_vision_encoder", true);
  writer.string("clip.vision.projector_type", "gemma4v");
  writer.u32("clip.vision.image_size", 224);
  writer.u32("clip.vision.patch_size", config.patch_size);
  writer.u32("clip.vision.embedding_length", config.hidden_size);
  writer.u32("clip.vision.feed_forward_length", config.intermediate_size);
  writer.u32("clip.vision.block_count", config.num_hidden_layers);
  writer.u32("clip.vision.attention.head_count", config.num_attention_heads);
  writer.u32("clip.vision.projection_dim", config.text_hidden_size);
  writer.f32("clip.vision.attention.layer_norm_epsilon", config.rms_norm_eps);
  const std::map<std::string, std::string> of_model = {
      {"model.vision_tower.patch_embedder.position_embedding_table", "v.position_embd.weight"},
      {"model.vision_tower.std_bias", "v.std_bias"},
      {"model.vision_tower.std_scale", "v.std_scale"},
      {"model.embed_vision.embedding_projection.weight", "mm.input_projection.weight"}};
  const std::map<std::string, std::string> of_layer = {
      {"input_layernorm", "ln1"},           {"post_attention_layernorm", "attn_post_norm"},
      {"pre_feedforward_layernorm", "ln2"}, {"post_feedforward_layernorm", "ffn_post_norm"},
      {"self_attn.q_norm", "attn_q_norm"},  {"self_attn.k_norm", "attn_k_norm"},
      {"self_attn.q_proj", "attn_q"},       {"self_attn.k_proj", "attn_k"},
      {"self_attn.v_proj", "attn_v"},       {"self_attn.o_proj", "attn_out"},
      {"mlp.gate_proj", "ffn_gate"},        {"mlp.up_proj", "ffn_up"},
      {"mlp.down_proj", "ffn_down"}};
  add_hearing_keys(writer, load_audio_config(model_at(backbone)).value());
  for (const TensorEntry& entry : checkpoint.tensors()) {
    std::vector<float> values = floats_of(entry);
    std::vector<std::uint64_t> extents(entry.shape.rbegin(), entry.shape.rend());
    if (extents.empty()) extents = {1};
    std::string name;
    if (entry.name == "model.vision_tower.patch_embedder.input_proj.weight") {
      name = "v.patch_embd.weight";
      const auto side = static_cast<std::size_t>(config.patch_size), pixels = side * side;
      extents = {side, side, 3, static_cast<std::uint64_t>(entry.shape[0])};
      values = colours_first(values, pixels);
    } else if (of_model.contains(entry.name)) {
      name = of_model.at(entry.name);
    } else if (entry.name.starts_with("model.vision_tower.encoder.layers.")) {
      std::string rest = entry.name.substr(std::string("model.vision_tower.encoder.layers.").size());
      if (const std::size_t linear = rest.find(".linear.weight"); linear != rest.npos) rest.erase(linear, 7);
      const std::size_t first = rest.find('.'), last = rest.rfind('.');
      name = fmt::format("v.blk.{}.{}{}", rest.substr(0, first), of_layer.at(rest.substr(first + 1, last - first - 1)),
                         rest.substr(last));
    } else if (name = hearing_name(entry.name, values, extents); !name.empty()) {
    } else {
      continue;  // the text's
    }
    writer.tensor({name, extents, gguf_tensor_type(DType::kF32), encode(DType::kF32, values)});
  }
  return writer;
}

/// What llama.cpp's converter makes of what 12B has in place of towers.
GgufWriter unified_projector_of(const fs::path& backbone) {
  const VisionConfig config = load_vision_config(model_at(backbone)).value();
  GgufWriter writer;
  writer.string("general.architecture", "clip");
  writer.string("clip.vision.projector_type", "gemma4uv");
  writer.string("clip.audio.projector_type", "gemma4ua");
  writer.u32("clip.vision.patch_size", 2);  // of six pixels, a third of a side: the default's pooling
  writer.u32("clip.vision.embedding_length", config.hidden_size);
  writer.u32("clip.vision.block_count", 0);
  writer.f32("clip.vision.attention.layer_norm_epsilon", 1e-6F);
  const std::map<std::string, std::string> names = {
      {"model.vision_embedder.patch_dense.weight", "v.patch_embd.weight"},
      {"model.vision_embedder.patch_dense.bias", "v.patch_embd.bias"},
      {"model.vision_embedder.patch_ln1.weight", "v.patch_norm.1.weight"},
      {"model.vision_embedder.patch_ln1.bias", "v.patch_norm.1.bias"},
      {"model.vision_embedder.patch_ln2.weight", "v.patch_norm.2.weight"},
      {"model.vision_embedder.patch_ln2.bias", "v.patch_norm.2.bias"},
      {"model.vision_embedder.pos_norm.weight", "v.patch_norm.3.weight"},
      {"model.vision_embedder.pos_norm.bias", "v.patch_norm.3.bias"},
      {"model.vision_embedder.pos_embedding", "v.position_embd.weight"},
      {"model.embed_vision.embedding_projection.weight", "mm.input_projection.weight"},
      {"model.embed_audio.embedding_projection.weight", "mm.a.input_projection.weight"}};
  const Checkpoint checkpoint = Checkpoint::open(backbone).value();
  for (const TensorEntry& entry : checkpoint.tensors()) {
    const std::string& name = names.at(entry.name);
    std::vector<float> values = floats_of(entry);
    std::vector<std::uint64_t> extents(entry.shape.rbegin(), entry.shape.rend());
    if (name == "v.patch_embd.weight" || name.starts_with("v.patch_norm.1."))
      values = colours_first(values, static_cast<std::size_t>(config.patch_size * config.patch_size));
    if (name == "v.position_embd.weight") {
      const std::size_t count = extents[2], width = extents[0];
      std::vector<float> turned;
      for (std::size_t axis = 0; axis < 2; ++axis) {
        for (std::size_t i = 0; i < count; ++i)
          turned.insert(turned.end(), &values[(2 * i + axis) * width], &values[(2 * i + axis) * width] + width);
      }
      values = turned;
      extents = {width, count, 2};
    }
    writer.tensor({name, extents, gguf_tensor_type(DType::kF32), encode(DType::kF32, values)});
  }
  return writer;
}

/// Text models as GGUF, and their towers beside them.
struct Pair {
  explicit Pair(const std::function<void(GgufWriter&)>& edit = {}) : Pair(edit, seeing(), projector_of(seeing())) {}
  Pair(const std::function<void(GgufWriter&)>& edit, const fs::path& backbone, GgufWriter projector) {
    GgufOptions options{.type = DType::kF32};
    options.edit = [](GgufWriter& text) {
      std::vector<std::string> tokens(512, "x");
      tokens[500] = "<|image|>", tokens[503] = "<|image>", tokens[504] = "<image|>";
      tokens[502] = "<|audio|>", tokens[505] = "<|audio>", tokens[506] = "<audio|>";
      text.strings("tokenizer.ggml.tokens", tokens);
    };
    write_gguf(backbone, dir / "model.gguf", options);
    if (edit) edit(projector);
    dir.write("mmproj-F32.gguf", projector.bytes());
  }
  /// Why its pictures cannot be seen.
  std::string refusal() const {
    const auto config = load_vision_config(model_at(dir.path()));
    return config ? "" : config.error().message;
  }
  TemporaryDir dir;
};
fs::path golden_of(const char* name) { return fs::path(OUTRIDER_SOURCE_DIR) / "tests/goldens" / name / "backbone"; }
/// A 12B.
struct UnifiedPair : Pair {
  explicit UnifiedPair(const std::function<void(GgufWriter&)>& edit = {})
      : Pair(edit, golden_of("unified-12b"), unified_projector_of(golden_of("unified-media"))) {}
};

TEST(Projector, OfAGgufIsTheSameTower) {
  const Pair pair;
  for (const fs::path& path : {pair.dir.path(), pair.dir / "model.gguf"}) {
    SCOPED_TRACE(path.string());
    const VisionConfig ours = load_vision_config(model_at(path)).value(),
                       theirs = load_vision_config(model_at(seeing())).value();
    EXPECT_EQ(
        std::tie(ours.hidden_size, ours.intermediate_size, ours.num_hidden_layers, ours.num_attention_heads,
                 ours.head_dim, ours.patch_size, ours.pooling_kernel_size, ours.position_embedding_size),
        std::tie(theirs.hidden_size, theirs.intermediate_size, theirs.num_hidden_layers, theirs.num_attention_heads,
                 theirs.head_dim, theirs.patch_size, theirs.pooling_kernel_size, theirs.position_embedding_size));
    EXPECT_EQ(std::tie(ours.rope_theta, ours.use_clipped_linears, ours.standardize, ours.both_ways,
                       ours.text_hidden_size, ours.image_token_id, ours.boi_token_id, ours.eoi_token_id),
              std::tie(theirs.rope_theta, theirs.use_clipped_linears, theirs.standardize, theirs.both_ways,
                       theirs.text_hidden_size, theirs.image_token_id, theirs.boi_token_id, theirs.eoi_token_id));
    Picture picture{.height = 36, .width = 24, .rgb = {}};
    for (int i = 0; i < 36 * 24 * 3; ++i) picture.rgb.push_back(static_cast<std::uint8_t>(i * 37));
    const Patches patches = cut_into_patches(picture, ours).value();
    for (const WeightType type : {WeightType::kF32, WeightType::kInt8}) {
      const auto gguf = PictureEncoder::load(model_at(path), type).value();
      const auto safetensors = PictureEncoder::load(model_at(seeing()), type).value();
      const Matrix<const float> a = gguf->encode(patches), b = safetensors->encode(patches);
      ASSERT_EQ(a.size(0), 6);
      EXPECT_TRUE(std::equal(a.data(), a.data() + a.size(0) * a.size(1), b.data()));
    }
  }
}

// The file has the softplus of a layer's scales, rounded, and so their last bits are others.
TEST(Projector, OfAGgufHearsTheSame) {
  const Pair pair;
  const AudioConfig ours = load_audio_config(model_at(pair.dir.path())).value(),
                    theirs = load_audio_config(model_at(seeing())).value();
  EXPECT_EQ(
      std::tie(ours.hidden_size, ours.num_hidden_layers, ours.num_attention_heads, ours.conv_kernel_size,
               ours.attention_past, ours.output_proj_dims, ours.use_clipped_linears, ours.text_hidden_size),
      std::tie(theirs.hidden_size, theirs.num_hidden_layers, theirs.num_attention_heads, theirs.conv_kernel_size,
               theirs.attention_past, theirs.output_proj_dims, theirs.use_clipped_linears, theirs.text_hidden_size));
  EXPECT_EQ(std::tie(ours.rms_norm_eps, ours.audio_token_id, ours.boa_token_id, ours.eoa_token_id),
            std::tie(theirs.rms_norm_eps, theirs.audio_token_id, theirs.boa_token_id, theirs.eoa_token_id));
  EXPECT_TRUE(std::ranges::equal(ours.subsampling_conv_channels, theirs.subsampling_conv_channels));
  std::vector<float> samples;
  for (int i = 0; i < 20'000; ++i) samples.push_back(static_cast<float>(i * 37 % 256 - 128) / 256);
  const auto gguf = SoundEncoder::load(model_at(pair.dir.path()), WeightType::kF32).value();
  const auto safetensors = SoundEncoder::load(model_at(seeing()), WeightType::kF32).value();
  const Matrix<const float> a = gguf->encode(samples), b = safetensors->encode(samples);
  ASSERT_EQ(a.size(0), 31);
  double worst = 0, largest = 0;
  for (std::int64_t i = 0; i < a.size(0) * a.size(1); ++i) {
    worst = std::max(worst, std::abs(static_cast<double>(a.data()[i]) - b.data()[i]));
    largest = std::max(largest, std::abs(static_cast<double>(b.data()[i])));
  }
  EXPECT_LT(worst, 1e-5 * largest);
  // One of another kind, and none.
  for (const auto& edit : std::vector<std::function<void(GgufWriter&)>>{
           [](GgufWriter& w) { w.string("clip.audio.projector_type", "gemma4ua"); },
           [](GgufWriter& w) { w.erase("clip.audio.projector_type"); }}) {
    const Pair deaf(edit);
    EXPECT_EQ(deaf.refusal(), "");
    EXPECT_EQ(load_audio_config(model_at(deaf.dir.path())).error().code, Errc::kNotFound);
  }
}

TEST(Projector, OfA12BIsWhatItHasInPlaceOfTowers) {
  const UnifiedPair pair;
  const ModelFiles files = model_at(pair.dir.path()), safetensors = model_at(golden_of("unified-media"));
  const VisionConfig ours = load_vision_config(files).value(), theirs = load_vision_config(safetensors).value();
  EXPECT_EQ(std::tie(ours.without_tower, ours.both_ways, ours.hidden_size, ours.patch_size, ours.pooling_kernel_size,
                     ours.position_embedding_size, ours.text_hidden_size, ours.image_token_id, ours.boi_token_id),
            std::tie(theirs.without_tower, theirs.both_ways, theirs.hidden_size, theirs.patch_size,
                     theirs.pooling_kernel_size, theirs.position_embedding_size, theirs.text_hidden_size,
                     theirs.image_token_id, theirs.boi_token_id));
  Picture picture{.height = 12, .width = 18, .rgb = {}};
  for (int i = 0; i < 12 * 18 * 3; ++i) picture.rgb.push_back(static_cast<std::uint8_t>(i * 37));
  const Patches patches = cut_into_patches(picture, ours).value();
  std::vector<float> samples;
  for (int i = 0; i < 230; ++i) samples.push_back(static_cast<float>(i * 37 % 256 - 128) / 256);
  const auto same = [](Matrix<const float> a, Matrix<const float> b) {
    return a.size(0) == b.size(0) && a.size(1) == b.size(1) &&
           std::equal(a.data(), a.data() + a.size(0) * a.size(1), b.data());
  };
  for (const WeightType type : {WeightType::kF32, WeightType::kInt8}) {
    EXPECT_TRUE(same(PictureEncoder::load(files, type).value()->encode(patches),
                     PictureEncoder::load(safetensors, type).value()->encode(patches)));
    EXPECT_TRUE(same(SoundEncoder::load(files, type).value()->encode(samples),
                     SoundEncoder::load(safetensors, type).value()->encode(samples)));
  }
  const UnifiedPair deaf([](GgufWriter& w) { w.erase("clip.audio.projector_type"); });
  EXPECT_EQ(load_audio_config(model_at(deaf.dir.path())).error().code, Errc::kNotFound);
}

TEST(Projector, WhatCannotBeUsedOfA12BIsNamed) {
  const auto told = [](const std::function<void(GgufWriter&)>& edit) { return UnifiedPair(edit).refusal(); };
  EXPECT_NE(told([](GgufWriter& w) {
              w.u32("clip.vision.patch_size", 5);
            }).find("v.patch_embd.weight is F32 [44, 108], wanted F32, F16 or BF16 [44, 675]"),
            std::string::npos);
  EXPECT_NE(told([](GgufWriter& w) {
              w.u32("clip.vision.patch_size", 257);
            }).find("patches of 257 pixels, 3 along a side of a soft token, wanted 1 to 256 of each"),
            std::string::npos);
  EXPECT_NE(told([](GgufWriter& w) {
              w.find("v.patch_norm.1.bias")->name = "v.other";
            }).find("tensor v.patch_norm.1.bias is missing"),
            std::string::npos);
  EXPECT_NE(told([](GgufWriter& w) {
              w.find("v.position_embd.weight")->extents = {44, 18, 1};
            }).find("tensor v.position_embd.weight has shape [1, 18, 44], wanted [2, positions, 44]"),
            std::string::npos);
  // One of a tower beside a text model that has none, and the other way round.
  EXPECT_NE(told([](GgufWriter& w) { w.string("clip.vision.projector_type", "gemma4v"); }).find(" is missing"),
            std::string::npos);
  EXPECT_NE(
      Pair([](GgufWriter& w) { w.string("clip.vision.projector_type", "gemma4uv"); }).refusal().find(" has shape"),
      std::string::npos);
}

TEST(Projector, IsFoundByItsNameAndChosenByItsType) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(choose_projector(Names{"m.gguf", "mmproj-F32.gguf", "mmproj-F16.gguf", "mmproj-BF16.gguf"}, "m.gguf"),
            "mmproj-BF16.gguf");
  EXPECT_EQ(choose_projector(Names{"mmproj-F32.gguf", "mmproj-F16.gguf"}, "m.gguf"), "mmproj-F16.gguf");
  EXPECT_EQ(choose_projector(Names{"m.mmproj-Q8_0.gguf", "m.Q8_0.gguf"}, "m.gguf"), "m.mmproj-Q8_0.gguf");
  EXPECT_EQ(choose_projector(Names{"m.gguf", "mmproj-F16.txt"}, "m.gguf"), "");
  const Pair pair;
  // The model's type is not the projector's; of several models each has its own.
  const Names types = {"mmproj-m-Q8_0.gguf", "mmproj-m-BF16.gguf"}, models = {"a.mmproj-F16.gguf", "b.mmproj-F16.gguf"};
  for (const char* model : {"m-Q8_0.gguf", "m-Q8_0-00001-of-00002.gguf", "m.gguf"})
    EXPECT_EQ(choose_projector(types, model), "mmproj-m-BF16.gguf");
  for (const std::string model : {"a", "b"})
    EXPECT_EQ(choose_projector(models, model + ".Q8_0.gguf"), model + ".mmproj-F16.gguf");
  fs::rename(pair.dir / "mmproj-F32.gguf", pair.dir / "model.mmproj-F32.gguf");
  EXPECT_EQ(pair.refusal(), "");
  pair.dir.write("model.mmproj-BF16.gguf", "");
  EXPECT_NE(pair.refusal().find("model.mmproj-BF16.gguf: does not start with"), std::string::npos) << pair.refusal();
  EXPECT_EQ(load_audio_config(model_at(pair.dir.path())).error().message, pair.refusal());
}

TEST(Projector, WhatCannotBeUsedLeavesTheTextAlone) {
  const auto told = [](const std::function<void(GgufWriter&)>& edit) {
    const Pair pair(edit);
    EXPECT_TRUE(model_at(pair.dir.path()).config_json().value());
    return pair.refusal();
  };
  EXPECT_NE(told([](GgufWriter& w) {
              w.string("clip.vision.projector_type", "gemma3");
            }).find("is a projector of kind \"gemma3\" (\"clip\"), wanted gemma4v"),
            std::string::npos);
  EXPECT_NE(told([](GgufWriter& w) {
              w.erase("clip.vision.block_count");
            }).find("clip.vision.block_count is missing, wanted a whole number"),
            std::string::npos);
  EXPECT_NE(told([](GgufWriter& w) {
              w.find("mm.input_projection.weight")->name = "mm.other";
            }).find("tensor mm.input_projection.weight is missing"),
            std::string::npos);
  EXPECT_NE(told([](GgufWriter& w) { w.u32("clip.vision.patch_size", 5); }).find("v.patch_embd.weight is F32 ["),
            std::string::npos);
  EXPECT_NE(told([](GgufWriter& w) {
              w.find("a.pre_encode.out.weight")->name = "a.other";
            }).find("tensor a.pre_encode.out.weight is missing"),
            std::string::npos);
  EXPECT_NE(told([](GgufWriter& w) { w.version = 9; }).find("has GGUF version 9"), std::string::npos);
  const Pair pair;
  const fs::path alone = pair.dir / "alone";
  fs::create_directory(alone);
  fs::copy(pair.dir / "model.gguf", alone);
  EXPECT_NE(load_vision_config(model_at(alone)).error().message.find("has no projector beside it"), std::string::npos);
  EXPECT_NE(load_audio_config(model_at(alone)).error().message.find("has no projector beside it"), std::string::npos);
}

}  // namespace
}  // namespace outrider
