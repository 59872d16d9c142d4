// What the towers of pictures and of sounds both promise, on Hugging Face's golden (multimodal-e4b) and the numpy
// reference's (vision-odd, standardized, and audio-odd: no bounds, sizes that no published model has).
#include "common/compute/kernels/team.h"
#include "common/model/checkpoint/pack.h"
#include "common/os/files.h"
#include "tests/support/temporary_dir.h"
#include "tests/unit/tower_support.h"

namespace outrider {
namespace {
namespace fs = std::filesystem;

template <class Kind>
class Tower : public testing::Test {};
using Kinds = testing::Types<Seeing, Hearing>;
TYPED_TEST_SUITE(Tower, Kinds);

// 1e-4, as for the text models: sums in another order.
TYPED_TEST(Tower, EveryIntermediateEqualsTheReferences) {
  Golden<TypeParam> g(TypeParam::kOddGolden);
  std::size_t compared = 0;
  const TraceSink trace = [&](const std::string& name, Matrix<const float> value) {
    EXPECT_LT(relative_error(to_vector(value), floats(g.golden, name)), 1e-4) << name;
    ++compared;
  };
  g.encode(&trace);
  EXPECT_EQ(compared, g.golden.tensors().size() - TypeParam::kInputTensors) << "all but the input";
}

// What the types round to is what `outrider parity` allows them; a wrong term would be off by more.
TYPED_TEST(Tower, OtherTypesAreNear) {
  for (const char* folder : {"multimodal-e4b", TypeParam::kOddGolden}) {
    for (const auto& [type, bound] : {std::pair(WeightType::kBf16, 0.1), std::pair(WeightType::kInt8, 0.4)}) {
      SCOPED_TRACE(std::string(folder) + " " + to_string(type));
      Golden<TypeParam> exact(folder), rounded(folder, type);
      const double error = relative_error(rounded.encode(), exact.encode());
      EXPECT_LT(error, bound);
      EXPECT_GT(error, 0) << "nothing was rounded";
    }
  }
}

TYPED_TEST(Tower, OfAnInt4ModelIsInInt8) {
  Golden<TypeParam> int4("multimodal-e4b", WeightType::kInt4), int8("multimodal-e4b", WeightType::kInt8);
  EXPECT_EQ(int4.encode(), int8.encode());
}

// Bit for bit: after others of other sizes, and with other numbers of threads.
TYPED_TEST(Tower, RowsDependOnTheirInputAlone) {
  for (const WeightType type : {WeightType::kF32, WeightType::kBf16, WeightType::kInt8}) {
    SCOPED_TRACE(to_string(type));
    Golden<TypeParam> g("multimodal-e4b", type);
    const auto larger = TypeParam::large_input(g.tower->config());
    const std::vector<float> alone = g.encode(), larger_alone = g.encode(larger);
    EXPECT_EQ(g.encode(), alone);
    const int threads = team_size();
    set_team_size(threads == 1 ? 2 : 1);
    EXPECT_EQ(g.encode(), alone) << "with " << threads << " threads it was another";
    EXPECT_EQ(g.encode(larger), larger_alone) << "with " << threads << " threads it was another";
    set_team_size(threads);
  }
}

TYPED_TEST(Tower, OfAPackHasTheSameBits) {
  const TemporaryDir dir;
  const fs::path backbone = goldens() / "multimodal-e4b/backbone";
  for (const WeightType type : {WeightType::kF32, WeightType::kBf16, WeightType::kInt8, WeightType::kInt4}) {
    SCOPED_TRACE(to_string(type));
    const fs::path out = dir / to_string(type);
    {
      const std::unique_ptr<PackWriter> writer = PackWriter::create(out).value();
      ASSERT_TRUE(writer->add_file("config.json", read_text(backbone / "config.json").value()));
      const auto weights = packing_weights(open_weights(model_at(backbone), type).value(), *writer);
      ASSERT_TRUE(TypeParam::Tower::load(TypeParam::config_of(model_at(backbone)).value(), weights));
      ASSERT_TRUE(
          writer->finish({.dtype = to_string(type), .source = "", .fingerprint = 1, .embedding_fingerprint = 1}));
    }
    Golden<TypeParam> g("multimodal-e4b", type);
    const std::vector<float> soft = g.encode();
    g.tower = TypeParam::Tower::load(model_at(out), type).value();
    EXPECT_EQ(g.encode(), soft);
  }
  EXPECT_FALSE(TypeParam::Tower::is_in(TypeParam::config_of(model_at(backbone)).value(),
                                       *open_weights(model_at(goldens() / "e4b/backbone"), WeightType::kF32).value()));
}

// A text's config with a tower, and the text's weights alone.
TYPED_TEST(Tower, ThatIsNotAmongTheWeightsIsMissedByName) {
  const TemporaryDir dir;
  fs::copy(goldens() / "e4b/backbone", dir.path(), fs::copy_options::recursive);
  fs::copy(goldens() / "multimodal-e4b/backbone/config.json", dir / "config.json",
           fs::copy_options::overwrite_existing);
  const auto tower = TypeParam::Tower::load(model_at(dir.path()), WeightType::kF32);
  ASSERT_FALSE(tower);
  EXPECT_EQ(tower.error().code, Errc::kNotFound);
  EXPECT_NE(tower.error().message.find(" tower among its weights"), std::string::npos) << tower.error().message;
}

}  // namespace
}  // namespace outrider
