// The feature extractor and the audio tower against Hugging Face's (sounds, multimodal-e4b) and the numpy reference's
// (audio-odd: no bounds, sizes that no published model has).
#include "common/audio/audio_tower.h"

#include <cmath>
#include <filesystem>
#include <map>

#include <gtest/gtest.h>

#include "common/base/files.h"
#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/pack.h"
#include "common/kernels/team.h"
#include "tests/support/model_at.h"
#include "tests/support/temporary_dir.h"

namespace outrider {
namespace {
namespace fs = std::filesystem;

fs::path goldens() { return fs::path(OUTRIDER_SOURCE_DIR) / "tests/goldens"; }

std::vector<float> floats(const Checkpoint& golden, const std::string& name) {
  const TensorEntry* const entry = golden.find(name);
  CHECK(entry != nullptr, "{}", name);
  std::vector<float> values(static_cast<std::size_t>(entry->element_count()));
  EXPECT_TRUE(read_f32(*entry, values));
  return values;
}

/// The largest difference in units of the golden's largest value.
double relative_error(std::span<const float> ours, std::span<const float> theirs) {
  EXPECT_EQ(ours.size(), theirs.size());
  double error = 0, largest = 0;
  for (std::size_t i = 0; i < std::min(ours.size(), theirs.size()); ++i) {
    error = std::max(error, std::abs(static_cast<double>(ours[i]) - theirs[i]));
    largest = std::max(largest, std::abs(static_cast<double>(theirs[i])));
  }
  return error / largest;
}

std::vector<float> to_vector(Matrix<const float> m) {
  return {m.data(), m.data() + m.size(0) * m.size(1)};  // of an encode: contiguous
}

Tensor to_features(const std::vector<float>& values, std::int64_t frames) {
  Tensor features(frames, kMelBins);
  std::copy_n(values.begin(), frames * kMelBins, features.view().data());
  return features;
}

/// Samples that count up by `step`.
std::vector<float> sound_of(std::int64_t count, int step) {
  std::vector<float> samples;
  for (std::int64_t i = 0; i < count; ++i) samples.push_back(static_cast<float>(i * step % 256 - 128) / 256);
  return samples;
}

struct Golden {
  explicit Golden(const char* folder, WeightType type = WeightType::kF32)
      : golden(Checkpoint::open(goldens() / folder / "golden.safetensors").value()),
        tower(AudioTower::load(model_at(goldens() / folder / "backbone"), type).value()) {
    const bool huggingfaces = golden.find("input_features") != nullptr;
    const std::vector<float> values = floats(golden, huggingfaces ? "input_features" : "features");
    // Behind its sound Hugging Face's has padding.
    std::int64_t frames = std::ssize(values) / kMelBins;
    if (const TensorEntry* const mask = golden.find("input_features_mask")) {
      std::vector<std::int64_t> valid(static_cast<std::size_t>(frames));
      EXPECT_TRUE(read_i64(*mask, valid));
      frames = std::ranges::count(valid, 1);
    }
    features = to_features(values, frames);
  }

  Checkpoint golden;
  std::unique_ptr<AudioTower> tower;
  Tensor features;
};

// Near the floor the recorded logarithms carry the noise of a transform in single precision, up to 4e-4; what they are
// of does not: so much of its largest value is a few roundings of a float.
TEST(AudioFeatures, EqualHuggingFaces) {
  const Checkpoint golden = Checkpoint::open(goldens() / "sounds/features.safetensors").value();
  std::vector<float> ours = to_vector(audio_features(floats(golden, "samples")).view());
  std::vector<float> theirs = floats(golden, "features");
  EXPECT_LT(relative_error(ours, theirs), 1e-3 / 7) << "4e-4 of up to 7";
  for (std::vector<float>* values : {&ours, &theirs})
    for (float& value : *values) value = std::exp(value);
  EXPECT_LT(relative_error(ours, theirs), 1e-6);
}

TEST(AudioFeatures, HaveAFrameForEveryTenMillisecondsThatAreThere) {
  for (const auto& [samples, frames, soft_tokens] : {std::tuple(0, 0, 0),
                                                     {160, 0, 0},
                                                     {161, 1, 1},
                                                     {320, 1, 1},
                                                     {321, 2, 1},
                                                     {32000, 199, 50},
                                                     {480000, 2999, 750}}) {
    EXPECT_EQ(frame_count(samples), frames) << samples;
    EXPECT_EQ(audio_soft_tokens(samples), soft_tokens) << samples;
  }
  EXPECT_EQ(audio_features(std::vector<float>(kSamplesMin)).view()[0][5], std::log(1e-3F)) << "silence is the floor";
}

// A frame reads samples up to 160 after its start alone.
TEST(AudioFeatures, ALongerSoundBeginsWithTheFramesOfAShorterOne) {
  const std::vector<float> samples = sound_of(5000, 37);
  const std::vector<float> all = to_vector(audio_features(samples).view()),
                           some = to_vector(audio_features(std::span(samples).first(3000)).view());
  EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin()));
}

// 1e-4, as for the text models: sums in another order.
TEST(AudioTower, EqualsHuggingFaces) {
  Golden g("multimodal-e4b");
  std::map<std::string, std::vector<float>> heard;
  const TraceSink trace = [&](const std::string& name, Matrix<const float> value) { heard[name] = to_vector(value); };
  const std::vector<float> soft = to_vector(g.tower->encode(g.features.view(), &trace));
  const std::vector<float> rows = floats(g.golden, "audio.last_hidden_state");  // and padding behind them
  EXPECT_LT(relative_error(heard.at("rows"), std::span(rows).first(heard.at("rows").size())), 1e-4);
  EXPECT_LT(relative_error(soft, floats(g.golden, "audio.soft_tokens")), 1e-4);
  EXPECT_EQ(soft, heard.at("soft_tokens"));
}

TEST(AudioTower, EveryIntermediateEqualsTheReferences) {
  Golden g("audio-odd");
  std::size_t compared = 0;
  const TraceSink trace = [&](const std::string& name, Matrix<const float> value) {
    EXPECT_LT(relative_error(to_vector(value), floats(g.golden, name)), 1e-4) << name;
    ++compared;
  };
  g.tower->encode(g.features.view(), &trace);
  EXPECT_EQ(compared, g.golden.tensors().size() - 1) << "all but the input";
}

// A loop that has its turn every so many rows is late by so much at most.
TEST(AudioTower, GivesTheCallersLoopItsTurnWithinALayer) {
  Golden g("multimodal-e4b");
  const Tensor features = audio_features(sound_of(kSamplesMax, 3));
  std::int64_t turns = 0;
  const std::function<void()> between_steps = [&] { ++turns; };
  const std::vector<float> quiet = to_vector(g.tower->encode(features.view()));
  EXPECT_EQ(std::ssize(quiet), 750 * g.tower->config().text_hidden_size);
  EXPECT_EQ(to_vector(g.tower->encode(features.view(), nullptr, &between_steps)), quiet);
  EXPECT_GT(turns, g.tower->config().num_hidden_layers * 6 * 750 / 128);
}

// What the types round to is what `outrider parity` allows them; a wrong term would be off by more.
TEST(AudioTower, OtherTypesAreNear) {
  for (const char* folder : {"multimodal-e4b", "audio-odd"}) {
    for (const auto& [type, bound] : {std::pair(WeightType::kBf16, 0.1), std::pair(WeightType::kInt8, 0.4)}) {
      SCOPED_TRACE(std::string(folder) + " " + to_string(type));
      Golden exact(folder), rounded(folder, type);
      const std::vector<float> soft = to_vector(exact.tower->encode(exact.features.view()));
      const double error = relative_error(to_vector(rounded.tower->encode(rounded.features.view())), soft);
      EXPECT_LT(error, bound);
      EXPECT_GT(error, 0) << "nothing was rounded";
    }
  }
}

TEST(AudioTower, Int4ModelsHaveTheirTowerInInt8) {
  Golden int4("multimodal-e4b", WeightType::kInt4), int8("multimodal-e4b", WeightType::kInt8);
  EXPECT_EQ(to_vector(int4.tower->encode(int4.features.view())), to_vector(int8.tower->encode(int8.features.view())));
}

// Bit for bit: after other sounds of other lengths, and with other numbers of threads.
TEST(AudioTower, ASoundsRowsDependOnThatSoundAlone) {
  for (const WeightType type : {WeightType::kF32, WeightType::kBf16, WeightType::kInt8}) {
    SCOPED_TRACE(to_string(type));
    Golden g("multimodal-e4b", type);
    const std::vector<float> longer =
        sound_of(100'000, 7);  // 156 soft tokens: more than pass through a matrix together
    const int threads = team_size();
    std::vector<std::vector<float>> heard;
    for (const int other : {threads, threads == 1 ? 2 : 1}) {
      set_team_size(other);
      heard.push_back(to_vector(g.tower->encode(g.features.view())));
      heard.push_back(to_vector(g.tower->encode(audio_features(longer).view())));
    }
    EXPECT_EQ(to_vector(g.tower->encode(g.features.view())), heard[0]);
    EXPECT_EQ(heard[2], heard[0]);
    EXPECT_EQ(heard[3], heard[1]);
    set_team_size(threads);
  }
}

TEST(AudioTower, APackHasTheSameBits) {
  const TemporaryDir dir;
  const fs::path backbone = goldens() / "multimodal-e4b/backbone";
  for (const WeightType type : {WeightType::kF32, WeightType::kBf16, WeightType::kInt8, WeightType::kInt4}) {
    SCOPED_TRACE(to_string(type));
    const fs::path out = dir / to_string(type);
    {
      const std::unique_ptr<PackWriter> writer = PackWriter::create(out).value();
      ASSERT_TRUE(writer->add_file("config.json", read_text(backbone / "config.json").value()));
      const auto weights = packing_weights(open_weights(model_at(backbone), type).value(), *writer);
      ASSERT_TRUE(AudioTower::load(load_audio_config(model_at(backbone)).value(), weights));
      ASSERT_TRUE(
          writer->finish({.dtype = to_string(type), .source = "", .fingerprint = 1, .embedding_fingerprint = 1}));
    }
    Golden g("multimodal-e4b", type);
    const std::vector<float> soft = to_vector(g.tower->encode(g.features.view()));
    EXPECT_EQ(to_vector(AudioTower::load(model_at(out), type).value()->encode(g.features.view())), soft);
  }
  EXPECT_FALSE(AudioTower::is_in(*open_weights(model_at(goldens() / "e4b/backbone"), WeightType::kF32).value()));
}

TEST(AudioTower, ItsMemoryIsReported) {
  Golden g("multimodal-e4b");
  g.tower->encode(g.features.view());
  std::map<std::string, std::size_t> bytes;
  g.tower->report_buffers([&](const BufferFacts& facts) { bytes[facts.name] = facts.bytes; });
  EXPECT_TRUE(bytes.contains("audio_weights.layers.1.after.down"));
  EXPECT_GE(bytes.at("audio_scratch.soft_tokens"), 23u * 64 * sizeof(float));
}

std::string error_of(const std::string& config) {
  const auto result = parse_audio_config(config, "config.json");
  return result ? "" : result.error().message;
}

TEST(AudioConfig, ModelsWithoutAPublishedTowerAreRefusedByName) {
  EXPECT_EQ(load_audio_config(model_at(goldens() / "e4b/backbone")).error().code, Errc::kNotFound);
  EXPECT_NE(error_of("{}").find("no audio tower"), std::string::npos);
  EXPECT_NE(error_of(R"({"audio_config": null})").find("no audio tower"), std::string::npos);
  for (const auto& [audio, wanted] :
       {std::pair(R"("model_type": "gemma4_unified_audio")", "audio_config.model_type is \"gemma4_unified_audio\""),
        {R"("attention_context_right": 3)", "audio_config.attention_context_right is 3"},
        {R"("subsampling_conv_channels": [8])", "audio_config.subsampling_conv_channels is an array of 1, wanted two "},
        {R"("hidden_size": 12)",
         "audio_config.hidden_size is 12, wanted a multiple of twice num_attention_heads, 16"}}) {
    const std::string said = error_of(fmt::format(R"({{"text_config": {{}}, "audio_config": {{{}}}}})", audio));
    EXPECT_NE(said.find(wanted), std::string::npos) << said;
  }
  EXPECT_EQ(parse_audio_config(R"({"audio_config": {}, "text_config": {}, "eoa_token_index": 9})", "c")->eoa_token_id,
            9);
}

}  // namespace
}  // namespace outrider
