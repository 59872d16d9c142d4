// Which type weights are held in where nobody says.
#include "launch/suitable_type.h"

#include <filesystem>
#include <limits>

#include <gtest/gtest.h>

#include "common/model/checkpoint/pack.h"
#include "common/model/gemma4/assistant.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/temporary_dir.h"

namespace outrider {
namespace {
namespace fs = std::filesystem;

constexpr std::int64_t kMuch = std::numeric_limits<std::int64_t>::max();
const std::filesystem::path kNano = std::filesystem::path(OUTRIDER_SOURCE_DIR) / "models/nano";

TEST(SuitableType, IsThePublishedOneWhereThereIsRoom) {
  const SuitableType type = suitable_type({kNano / "backbone", kNano / "assistant"}, kMuch).value();
  EXPECT_EQ(type.type, WeightType::kBf16);
  EXPECT_EQ(type.why, "");
  EXPECT_EQ(suitable_type({kNano / "backbone", {}}, kMuch).value().type, WeightType::kBf16);
}

TEST(SuitableType, OfASmallerFileIsInt8AndOf4BitGridsQ4) {
  const TemporaryDir dir;
  const auto small = write_gguf(kNano / "backbone", dir.path() / "small.gguf", {.type = DType::kQ8_0});
  const SuitableType int8 = suitable_type({small, {}}, kMuch).value();
  EXPECT_EQ(int8.type, WeightType::kInt8);
  EXPECT_TRUE(int8.why.starts_with("its file holds Q8_0, of which int8 makes products that are 1.")) << int8.why;
  const auto grid = write_gguf(kNano / "backbone", dir.path() / "grid.gguf", {.type = DType::kQ4_0});
  const SuitableType q4 = suitable_type({grid, {}}, kMuch).value();
  EXPECT_EQ(q4.type, WeightType::kQ4);
  EXPECT_EQ(q4.why, "its weights lie on a 4-bit grid, which q4 keeps");
  EXPECT_EQ(suitable_type({grid, {}}, 1000).value().type, WeightType::kInt4);
  const auto file = write_gguf(kNano / "backbone", dir.path() / "model.gguf", {.type = DType::kF16});
  EXPECT_EQ(suitable_type({file, {}}, kMuch).value().type, WeightType::kBf16);
}

TEST(SuitableType, IsSmallerWhereMemoryIsShort) {
  const PairPaths nano{kNano / "backbone", kNano / "assistant"};
  // The pair has some 33 million numbers in matrices, of which the per-layer table stays in the file.
  const SuitableType int8 = suitable_type(nano, 45'000'000).value(), int4 = suitable_type(nano, 1000).value();
  EXPECT_EQ(int8.type, WeightType::kInt8);
  EXPECT_TRUE(int8.why.starts_with("bf16 would take 0.")) << int8.why;
  EXPECT_EQ(int4.type, WeightType::kInt4);
  EXPECT_TRUE(int4.why.starts_with("int8 would take 0.")) << int4.why;
}

// nano's towers take as much in int4 as in int8: where it would just fit without, the next smaller type is taken.
TEST(SuitableType, CountsTheTowers) {
  const TemporaryDir blind;
  fs::create_directory_symlink(kNano / "assistant", blind / "assistant");
  fs::copy(kNano / "backbone", blind / "backbone", fs::copy_options::recursive);
  std::int64_t in_bf16 = 0;
  for (const char* const tower : {"backbone/vision.safetensors", "backbone/audio.safetensors"}) {
    in_bf16 += static_cast<std::int64_t>(fs::file_size(kNano / tower));
    fs::remove(blind / tower);
  }
  const auto least = [](const PairPaths& pair) {
    std::int64_t bytes = 1;  // that int8 needs
    for (std::int64_t step = 1 << 26; step > 0; step /= 2)
      if (suitable_type(pair, bytes + step).value().type == WeightType::kInt4) bytes += step;
    return bytes + 1;
  };
  const std::int64_t towers =
      least({kNano / "backbone", kNano / "assistant"}) - least({blind / "backbone", blind / "assistant"});
  EXPECT_GT(towers, 100'000);
  EXPECT_LT(towers, in_bf16);
}

TEST(SuitableType, IsTheBackbonesWhateverItsAssistantWasPackedIn) {
  const TemporaryDir dir;
  const TextConfig config = load_text_config(ModelFiles::open(kNano / "backbone").value()).value();
  const auto backbone = open_weights(ModelFiles::open(kNano / "backbone").value(), WeightType::kBf16).value();
  {
    const ModelFiles files = ModelFiles::open(kNano / "assistant").value();
    const std::unique_ptr<PackWriter> writer = PackWriter::create(dir / "assistant").value();
    ASSERT_TRUE(writer->add_file("config.json", files.config_json().value()->text));
    const auto weights = packing_weights(open_weights(files, WeightType::kInt4).value(), *writer);
    ASSERT_TRUE(Assistant::load(load_assistant_config(files).value(), weights, config, *backbone));
    ASSERT_TRUE(writer->finish({.dtype = "int4", .source = "", .fingerprint = 1, .embedding_fingerprint = 1}));
  }
  EXPECT_EQ(suitable_type({kNano / "backbone", dir / "assistant"}, kMuch).value().type, WeightType::kBf16);
  EXPECT_EQ(suitable_type({dir / "assistant", kNano / "assistant"}, kMuch).value().type, WeightType::kInt4);
  const ModelFiles packed = ModelFiles::open(dir / "assistant").value();
  const auto loaded = Assistant::load(packed, config, *backbone, WeightType::kBf16);
  EXPECT_TRUE(loaded) << loaded.error().message;
  const auto exact = Assistant::load(packed, config, *backbone, WeightType::kF32);
  ASSERT_FALSE(exact);
  EXPECT_NE(exact.error().message.find("a pack of int4 weights, wanted f32"), std::string::npos);
}

TEST(SuitableType, OfWhatIsNotThereIsAnError) {
  const auto missing = suitable_type({kNano / "nothing", {}}, kMuch);
  ASSERT_FALSE(missing);
  EXPECT_NE(missing.error().message.find("nothing"), std::string::npos) << missing.error().message;
}

}  // namespace
}  // namespace outrider
