// The vision tower against Hugging Face's (multimodal-e4b) and the numpy reference's (vision-odd: standardized, no
// bounds, sizes that no published model has).
#include "common/vision/vision_tower.h"

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

/// The golden's picture, whose positions go through its grid row by row.
Patches golden_patches(const Checkpoint& golden) {
  const TensorEntry* const entry = golden.find("image_position_ids");
  std::vector<std::int64_t> positions(static_cast<std::size_t>(entry->element_count()));
  EXPECT_TRUE(read_i64(*entry, positions));
  return {.rows = positions.back() + 1,
          .columns = positions[positions.size() - 2] + 1,
          .values = floats(golden, "pixel_values")};
}

/// The largest difference in units of the golden's largest value.
double relative_error(std::span<const float> ours, const std::vector<float>& theirs) {
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

struct Golden {
  explicit Golden(const char* folder, WeightType type = WeightType::kF32)
      : golden(Checkpoint::open(goldens() / folder / "golden.safetensors").value()),
        tower(VisionTower::load(model_at(goldens() / folder / "backbone"), type).value()),
        picture(golden_patches(golden)) {}

  Checkpoint golden;
  std::unique_ptr<VisionTower> tower;
  Patches picture;
};

// 1e-4, as for the text models: sums in another order.
TEST(VisionTower, EqualsHuggingFaces) {
  Golden g("multimodal-e4b");
  std::map<std::string, std::vector<float>> seen;
  const TraceSink trace = [&](const std::string& name, Matrix<const float> value) { seen[name] = to_vector(value); };
  const std::vector<float> soft = to_vector(g.tower->encode(g.picture, &trace));
  EXPECT_LT(relative_error(seen.at("pooled"), floats(g.golden, "vision.last_hidden_state")), 1e-4);
  EXPECT_LT(relative_error(soft, floats(g.golden, "vision.soft_tokens")), 1e-4);
  EXPECT_EQ(soft, seen.at("soft_tokens"));
}

// Bytes that count up by `step`.
Picture picture_of(std::int64_t height, std::int64_t width, int step) {
  Picture picture{.height = height, .width = width, .rgb = {}};
  for (std::int64_t i = 0; i < 3 * height * width; ++i) picture.rgb.push_back(static_cast<std::uint8_t>(i * step + 11));
  return picture;
}

TEST(VisionTower, APortraitAndAPanoramaAreTheReferences) {
  const Golden g("multimodal-e4b");
  const Checkpoint reference = Checkpoint::open(goldens() / "multimodal-e4b/pictures.safetensors").value();
  for (const auto& [name, picture] :
       {std::pair("portrait", picture_of(48, 24, 7)), {"panorama", picture_of(12, 96, 101)}}) {
    const Patches patches = cut_into_patches(picture, g.tower->config()).value();
    EXPECT_LT(relative_error(to_vector(g.tower->encode(patches)), floats(reference, name)), 1e-4) << name;
  }
}

// A loop that has its turn every so many rows and queries is late by so much at most.
TEST(VisionTower, GivesTheCallersLoopItsTurnWithinALayer) {
  Golden g("multimodal-e4b");
  const Patches patches = cut_into_patches(picture_of(240, 240, 3), g.tower->config()).value();  // 3,600 patches
  std::int64_t turns = 0;
  const std::function<void()> between_steps = [&] { ++turns; };
  const std::vector<float> quiet = to_vector(g.tower->encode(patches));
  EXPECT_EQ(to_vector(g.tower->encode(patches, nullptr, &between_steps)), quiet);
  EXPECT_GT(turns, g.tower->config().num_hidden_layers * 3600 / 64);
}

TEST(VisionTower, EveryIntermediateEqualsTheReferences) {
  Golden g("vision-odd");
  std::size_t compared = 0;
  const TraceSink trace = [&](const std::string& name, Matrix<const float> value) {
    EXPECT_LT(relative_error(to_vector(value), floats(g.golden, name)), 1e-4) << name;
    ++compared;
  };
  g.tower->encode(g.picture, &trace);
  EXPECT_EQ(compared, g.golden.tensors().size() - 2) << "all but the input";
}

// What the types round to is what `outrider parity` allows them; a wrong term would be off by more.
TEST(VisionTower, OtherTypesAreNear) {
  for (const char* folder : {"multimodal-e4b", "vision-odd"}) {
    for (const auto& [type, bound] : {std::pair(WeightType::kBf16, 0.1), std::pair(WeightType::kInt8, 0.4)}) {
      SCOPED_TRACE(std::string(folder) + " " + to_string(type));
      Golden exact(folder), rounded(folder, type);
      const std::vector<float> soft = to_vector(exact.tower->encode(exact.picture));
      const double error = relative_error(to_vector(rounded.tower->encode(rounded.picture)), soft);
      EXPECT_LT(error, bound);
      EXPECT_GT(error, 0) << "nothing was rounded";
    }
  }
}

TEST(VisionTower, Int4ModelsHaveTheirTowerInInt8) {
  Golden int4("multimodal-e4b", WeightType::kInt4), int8("multimodal-e4b", WeightType::kInt8);
  EXPECT_EQ(to_vector(int4.tower->encode(int4.picture)), to_vector(int8.tower->encode(int8.picture)));
}

// Bit for bit: after other pictures of other sizes, and with other numbers of threads.
TEST(VisionTower, APicturesRowsDependOnThatPictureAlone) {
  for (const WeightType type : {WeightType::kF32, WeightType::kBf16, WeightType::kInt8}) {
    SCOPED_TRACE(to_string(type));
    Golden g("multimodal-e4b", type);
    const std::vector<float> alone = to_vector(g.tower->encode(g.picture));
    Patches larger{.rows = 36, .columns = 33, .values = {}};  // more rows than go through the MLP together
    for (std::int64_t i = 0; i < larger.rows * larger.columns; i += g.picture.rows * g.picture.columns)
      larger.values.insert(larger.values.end(), g.picture.values.begin(), g.picture.values.end());
    ASSERT_EQ(std::ssize(larger.values), larger.rows * larger.columns * g.tower->config().patch_floats());
    const std::vector<float> larger_alone = to_vector(g.tower->encode(larger));
    EXPECT_EQ(to_vector(g.tower->encode(g.picture)), alone);
    const int threads = team_size();
    set_team_size(threads == 1 ? 2 : 1);
    EXPECT_EQ(to_vector(g.tower->encode(g.picture)), alone) << "with " << threads << " threads it was another";
    EXPECT_EQ(to_vector(g.tower->encode(larger)), larger_alone) << "with " << threads << " threads it was another";
    set_team_size(threads);
  }
}

TEST(VisionTower, APackHasTheSameBits) {
  const TemporaryDir dir;
  const fs::path backbone = goldens() / "multimodal-e4b/backbone";
  for (const WeightType type : {WeightType::kF32, WeightType::kBf16, WeightType::kInt8, WeightType::kInt4}) {
    SCOPED_TRACE(to_string(type));
    const fs::path out = dir / to_string(type);
    {
      const std::unique_ptr<PackWriter> writer = PackWriter::create(out).value();
      ASSERT_TRUE(writer->add_file("config.json", read_text(backbone / "config.json").value()));
      const auto weights = packing_weights(open_weights(model_at(backbone), type).value(), *writer);
      ASSERT_TRUE(VisionTower::load(load_vision_config(model_at(backbone)).value(), weights));
      ASSERT_TRUE(
          writer->finish({.dtype = to_string(type), .source = "", .fingerprint = 1, .embedding_fingerprint = 1}));
    }
    Golden g("multimodal-e4b", type);
    const std::vector<float> soft = to_vector(g.tower->encode(g.picture));
    EXPECT_EQ(to_vector(VisionTower::load(model_at(out), type).value()->encode(g.picture)), soft);
  }
  EXPECT_FALSE(VisionTower::is_in(*open_weights(model_at(goldens() / "e4b/backbone"), WeightType::kF32).value()));
}

TEST(VisionTower, ItsMemoryIsReported) {
  Golden g("multimodal-e4b");
  g.tower->encode(g.picture);
  std::map<std::string, std::size_t> bytes;
  g.tower->report_buffers([&](const BufferFacts& facts) { bytes[facts.name] = facts.bytes; });
  EXPECT_EQ(bytes.at("vision_weights.position_embedding_table"), 2u * 64 * 32 * sizeof(float));
  EXPECT_TRUE(bytes.contains("vision_weights.layers.2.down"));
  EXPECT_TRUE(bytes.contains("vision_scratch.gate"));
}

std::string error_of(const std::string& config) {
  const auto result = parse_vision_config(config, "config.json");
  return result ? "" : result.error().message;
}

TEST(VisionConfig, ModelsWithoutAPublishedTowerAreRefusedByName) {
  EXPECT_EQ(load_vision_config(model_at(goldens() / "e4b/backbone")).error().code, Errc::kNotFound);
  EXPECT_NE(error_of("{}").find("no vision tower"), std::string::npos);
  EXPECT_NE(error_of(R"({"vision_config": null})").find("no vision tower"), std::string::npos);
  const std::string unified =
      error_of(R"({"text_config": {}, "vision_config": {"model_type": "gemma4_unified_vision"}})");
  EXPECT_NE(unified.find("vision_config.model_type is \"gemma4_unified_vision\""), std::string::npos) << unified;
  const std::string head = error_of(R"({"text_config": {}, "vision_config": {"head_dim": 66}})");
  EXPECT_NE(head.find("vision_config.head_dim is 66, wanted a multiple of 4"), std::string::npos) << head;
  const std::string shared =
      error_of(R"({"text_config": {}, "vision_config": {"num_attention_heads": 8, "num_key_value_heads": 4}})");
  EXPECT_NE(shared.find("vision_config.num_key_value_heads is 4"), std::string::npos) << shared;
}

}  // namespace
}  // namespace outrider
