// The router and the experts against reference.py (tests/goldens/make_numpy_goldens.py moe), given the
// reference's inputs. Hidden states cannot show a wrong weight: the norm after the experts cancels any
// factor of a row.
#include "common/model/gemma4/moe.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <span>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include "common/model/checkpoint/checkpoint.h"
#include "common/model/gemma4/backbone.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/model_at.h"
#include "tests/support/temporary_dir.h"

namespace outrider {
namespace {

struct MoeGolden {
  const char* folder;
  const char* layer;  ///< the first or the last
};

class MoeLayer : public testing::TestWithParam<MoeGolden> {
 protected:
  static std::filesystem::path folder() {
    return std::filesystem::path(OUTRIDER_SOURCE_DIR) / "tests/goldens" / GetParam().folder;
  }

  WeightReader weights(WeightType type) const {
    return WeightReader(*weights_, text_prefix(*weights_)).as(type).under(std::string("layers.") + GetParam().layer);
  }
  Tensor golden(const std::string& name) const {
    Tensor values(entry(name).shape[0], entry(name).shape[1]);
    EXPECT_TRUE(read_f32(entry(name), {values.view().data(), static_cast<std::size_t>(entry(name).element_count())}));
    return values;
  }
  /// The reference's choices, a row's most probable first.
  std::vector<ExpertChoice> golden_choices() const {
    const Tensor weights = golden("weights");
    std::vector<std::int64_t> chosen(static_cast<std::size_t>(weights.rows() * weights.columns()));
    EXPECT_TRUE(read_i64(entry("chosen"), chosen));
    std::vector<ExpertChoice> choices;
    for (std::int64_t r = 0; r < weights.rows(); ++r) {
      for (std::int64_t k = 0; k < weights.columns(); ++k) {
        choices.push_back({r, chosen[static_cast<std::size_t>(r * weights.columns() + k)], weights.view()[r][k]});
      }
    }
    return choices;
  }
  const TensorEntry& entry(const std::string& name) const {
    return *golden_.find(std::string("layers.") + GetParam().layer + "." + name);
  }

  const TextConfig config_ = load_text_config(model_at(folder() / "backbone")).value();
  const std::shared_ptr<const WeightSource> weights_ =
      open_weights(model_at(folder() / "backbone"), WeightType::kF32).value();
  const Checkpoint golden_ = Checkpoint::open(folder() / "moe.safetensors").value();
  Workspace workspace_;
};
INSTANTIATE_TEST_SUITE_P(Goldens, MoeLayer,
                         testing::Values(MoeGolden{"moe-26b-a4b", "0"}, MoeGolden{"moe-26b-a4b", "5"},
                                         MoeGolden{"odd", "0"}, MoeGolden{"odd", "6"}),
                         [](const auto& param_info) {
                           std::string name = std::string(param_info.param.folder) + "_" + param_info.param.layer;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// In every type: the router does not follow it.
TEST_P(MoeLayer, RouterTakesTheReferencesExpertsWithItsWeights) {
  const Tensor input = golden("input");
  const std::vector<ExpertChoice> expected = golden_choices();
  ASSERT_EQ(static_cast<std::int64_t>(expected.size()), input.rows() * config_.top_k_experts);
  for (const WeightType type : {WeightType::kF32, WeightType::kBf16, WeightType::kInt8}) {
    SCOPED_TRACE(to_string(type));
    const Router router = Router::load(weights(type).under("router"), config_).value();
    const std::vector<ExpertChoice> actual = router.choose(input.view(), workspace_);
    ASSERT_EQ(actual.size(), expected.size());
    for (std::size_t i = 0; i < actual.size(); ++i) {
      EXPECT_EQ(actual[i].row, expected[i].row);
      EXPECT_EQ(actual[i].expert, expected[i].expert) << "choice " << i;
      // Float32 sums of hidden_size terms in another order.
      EXPECT_NEAR(actual[i].weight, expected[i].weight, 1e-5 * std::abs(expected[i].weight)) << "choice " << i;
    }
  }
}

TEST_P(MoeLayer, ExpertsGiveTheReferencesOutputWithinTheTypesRounding) {
  const Tensor input = golden("experts_input"), expected = golden("experts_output");
  // Relative to the largest output. bf16 rounds each factor of two chained GEMMs by at most 2^-9 of itself;
  // int8 by at most 1/254 of its row's largest, which in rows of random numbers is about 3 times a typical one.
  for (const auto& [type, bound] : {std::pair(WeightType::kF32, 1e-5), std::pair(WeightType::kBf16, 4.0 / 512),
                                    std::pair(WeightType::kInt8, 4 * 3.0 / 254)}) {
    const Experts experts = Experts::load(weights(type).under("experts"), config_).value();
    Tensor actual(expected.rows(), expected.columns());
    experts.forward(input.view(), golden_choices(), actual.view(), workspace_);
    double largest = 0, error = 0;
    for (std::int64_t r = 0; r < expected.rows(); ++r) {
      for (std::int64_t c = 0; c < expected.columns(); ++c) {
        largest = std::max(largest, std::abs(static_cast<double>(expected.view()[r][c])));
        error = std::max(error, std::abs(static_cast<double>(actual.view()[r][c]) - expected.view()[r][c]));
      }
    }
    EXPECT_LE(error, bound * largest) << to_string(type);
    EXPECT_GT(largest, 0);
  }
}

/// Writes the golden's tensors as packages that quantise name them: a matrix of each expert, not stacks of all.
void write_experts_apart(const std::filesystem::path& backbone, const std::filesystem::path& to) {
  const Checkpoint stacked = Checkpoint::open(backbone).value();
  std::string header = "{", data;
  const auto add = [&](const std::string& name, const TensorEntry& tensor, const std::vector<std::int64_t>& shape,
                       std::span<const std::byte> bytes) {
    header += fmt::format(R"({}"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", data.empty() ? "" : ",",
                          name, to_string(tensor.dtype), fmt::join(shape, ","), data.size(),
                          data.size() + bytes.size());
    data.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  };
  for (const TensorEntry& tensor : stacked.tensors()) {
    const std::size_t at = tensor.name.find(".experts.");
    if (at == tensor.name.npos) {
      add(tensor.name, tensor, tensor.shape, tensor.bytes);
      continue;
    }
    const std::string before = tensor.name.substr(0, at + 9), what = tensor.name.substr(at + 9);
    const std::vector<std::string> parts =
        what == "gate_up_proj" ? std::vector<std::string>{"gate_proj", "up_proj"} : std::vector{what};
    const std::int64_t rows = tensor.shape[1] / std::ssize(parts);
    const std::size_t size = tensor.bytes.size() / static_cast<std::size_t>(tensor.shape[0]) / parts.size();
    for (std::size_t i = 0; i < static_cast<std::size_t>(tensor.shape[0]) * parts.size(); ++i) {
      add(fmt::format("{}{}.{}.weight", before, i / parts.size(), parts[i % parts.size()]), tensor,
          {rows, tensor.shape[2]}, tensor.bytes.subspan(i * size, size));
    }
  }
  header += "}";
  std::ofstream(to, std::ios::binary) << raw_bytes(std::uint64_t{header.size()}) << header << data;
}

// As RedHatAI's and NVIDIA's FP8 and NVFP4 of 26B-A4B have them.
TEST_P(MoeLayer, ExpertsWithMatricesOfTheirOwnAreTheSame) {
  const TemporaryDir dir;
  write_experts_apart(folder() / "backbone", dir / "model.safetensors");
  std::filesystem::copy(folder() / "backbone/config.json", dir / "config.json");
  const Tensor input = golden("experts_input");
  for (const WeightType type : {WeightType::kBf16, WeightType::kInt8}) {
    const auto output = [&](const WeightSource& source) {
      const WeightReader layer = WeightReader(source, text_prefix(source)).as(type).under(std::string("layers.") +
                                                                                          GetParam().layer);
      const Result<Experts> experts = Experts::load(layer.under("experts"), config_);
      EXPECT_TRUE(experts) << experts.error().message;
      Tensor actual(input.rows(), input.columns());
      if (experts) experts->forward(input.view(), golden_choices(), actual.view(), workspace_);
      return std::vector<float>(actual.view().data(), actual.view().data() + input.rows() * input.columns());
    };
    const auto apart = open_weights(model_at(dir.path()), WeightType::kF32).value();
    EXPECT_EQ(output(*apart), output(*weights_)) << to_string(type);
  }
}

// Whatever other rows there are, and in whatever order they chose: the same bits.
TEST_P(MoeLayer, ARowIsTheSameAloneAndInTheBatch) {
  const Tensor input = golden("input"), normed = golden("experts_input");
  for (const WeightType type : {WeightType::kF32, WeightType::kBf16, WeightType::kInt8}) {
    const Router router = Router::load(weights(type).under("router"), config_).value();
    const Experts experts = Experts::load(weights(type).under("experts"), config_).value();
    const std::int64_t hidden = config_.hidden_size;
    Tensor batch(input.rows(), hidden), alone(1, hidden);
    experts.forward(normed.view(), router.choose(input.view(), workspace_), batch.view(), workspace_);
    for (std::int64_t r = 0; r < input.rows(); ++r) {
      experts.forward(normed.view().rows(r, 1), router.choose(input.view().rows(r, 1), workspace_), alone.view(),
                      workspace_);
      ASSERT_TRUE(std::equal(alone.view()[0].data(), alone.view()[0].data() + hidden, batch.view()[r].data()))
          << to_string(type) << ", row " << r;
    }
  }
}

// One row reads the router and top_k experts.
TEST_P(MoeLayer, WeightBytesAreThoseOfOneRow) {
  const Moe moe = Moe::load(weights(WeightType::kBf16), config_).value();
  const std::int64_t expert = 3 * config_.moe_intermediate_size * config_.hidden_size * 2;
  const std::int64_t router = config_.num_experts * config_.hidden_size * 4;
  EXPECT_EQ(static_cast<std::int64_t>(moe.weight_bytes()), router + config_.top_k_experts * expert);
}

}  // namespace
}  // namespace outrider
