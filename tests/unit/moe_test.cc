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
#include "common/os/files.h"
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
  /// The layer's experts, added to zeros.
  std::vector<float> output(const WeightSource& source, WeightType type) {
    const Result<Moe> moe = Moe::load(
        WeightReader(source, text_prefix(source)).as(type).under(std::string("layers.") + GetParam().layer), config_);
    EXPECT_TRUE(moe) << moe.error().message;
    const Tensor input = golden("input");
    Tensor sum(input.rows(), input.columns());
    if (moe) moe->add_to(input.view(), sum.view(), workspace_);
    return {sum.view().data(), sum.view().data() + input.rows() * input.columns()};
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

struct Safetensors {
  std::string header = "{", data;

  void add(const std::string& name, DType dtype, const std::vector<std::int64_t>& shape,
           std::span<const std::byte> bytes) {
    header += fmt::format(R"({}"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})", data.empty() ? "" : ",",
                          name, to_string(dtype), fmt::join(shape, ","), data.size(), data.size() + bytes.size());
    data.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  void write(const std::filesystem::path& to) const {
    std::ofstream(to, std::ios::binary) << raw_bytes(std::uint64_t{header.size() + 1}) << header << "}" << data;
  }
};

/// Writes the golden's tensors as packages that quantise name them: a matrix of each expert, not stacks of all.
/// @param module  of the experts, with a dot, or ""
void write_experts_apart(const std::filesystem::path& backbone, const std::string& module,
                         const std::filesystem::path& to) {
  const Checkpoint stacked = Checkpoint::open(backbone).value();
  Safetensors file;
  for (const TensorEntry& tensor : stacked.tensors()) {
    const std::size_t at = tensor.name.find(".experts.");
    if (at == tensor.name.npos) {
      file.add(tensor.name, tensor.dtype, tensor.shape, tensor.bytes);
      continue;
    }
    const std::string before = tensor.name.substr(0, at + 1) + module + "experts.", what = tensor.name.substr(at + 9);
    const std::vector<std::string> parts =
        what == "gate_up_proj" ? std::vector<std::string>{"gate_proj", "up_proj"} : std::vector{what};
    const std::int64_t rows = tensor.shape[1] / std::ssize(parts);
    const std::size_t size = tensor.bytes.size() / static_cast<std::size_t>(tensor.shape[0]) / parts.size();
    for (std::size_t i = 0; i < static_cast<std::size_t>(tensor.shape[0]) * parts.size(); ++i) {
      file.add(fmt::format("{}{}.{}.weight", before, i / parts.size(), parts[i % parts.size()]), tensor.dtype,
               {rows, tensor.shape[2]}, tensor.bytes.subspan(i * size, size));
    }
  }
  file.write(to);
}

// As RedHatAI's and NVIDIA's FP8 and NVFP4 of 26B-A4B have them; under "moe" in early exports of Model Optimizer.
TEST_P(MoeLayer, ExpertsWithMatricesOfTheirOwnAreTheSame) {
  for (const std::string module : {"", "moe."}) {
    const TemporaryDir dir;
    write_experts_apart(folder() / "backbone", module, dir / "model.safetensors");
    std::filesystem::copy(folder() / "backbone/config.json", dir / "config.json");
    const auto apart = open_weights(model_at(dir.path()), WeightType::kF32).value();
    for (const WeightType type : {WeightType::kBf16, WeightType::kInt8})
      EXPECT_EQ(output(*apart, type), output(*weights_, type)) << module << to_string(type);
  }
}

/// Rounds stacks of experts to 4 bits by 8. @param packed, plain  get codes and scales as compressed-tensors stacks
/// them, and the numbers that these stand for
void write_experts_packed(const std::filesystem::path& backbone, const std::filesystem::path& packed,
                          const std::filesystem::path& plain) {
  const Checkpoint stacked = Checkpoint::open(backbone).value();
  Safetensors codes_file, numbers_file;
  for (const TensorEntry& tensor : stacked.tensors()) {
    if (tensor.name.find(".experts.") == tensor.name.npos) {
      codes_file.add(tensor.name, tensor.dtype, tensor.shape, tensor.bytes);
      numbers_file.add(tensor.name, tensor.dtype, tensor.shape, tensor.bytes);
      continue;
    }
    std::vector<float> numbers(static_cast<std::size_t>(tensor.element_count())), scales(numbers.size() / 8);
    std::vector<std::uint32_t> words(numbers.size() / 8);
    ASSERT_TRUE(read_f32(tensor, numbers));
    for (std::size_t g = 0; g < words.size(); ++g) {
      const std::span<float> group = std::span(numbers).subspan(8 * g, 8);
      float largest = 0;
      for (const float number : group) largest = std::max(largest, std::abs(number));
      scales[g] = std::exp2(std::ceil(std::log2(largest / 7)));
      for (std::size_t i = 0; i < 8; ++i) {
        const float code = std::round(group[i] / scales[g]);
        words[g] |= static_cast<std::uint32_t>(code + 8) << 4 * i;
        group[i] = code * scales[g];
      }
    }
    const std::vector<std::int64_t> by_eight = {tensor.shape[0], tensor.shape[1], tensor.shape[2] / 8};
    codes_file.add(tensor.name + "_packed", DType::kI32, by_eight, std::as_bytes(std::span(words)));
    codes_file.add(tensor.name + "_scale", DType::kF32, by_eight, std::as_bytes(std::span(scales)));
    numbers_file.add(tensor.name, DType::kF32, tensor.shape, std::as_bytes(std::span(numbers)));
  }
  codes_file.write(packed);
  numbers_file.write(plain);
}

// As cyankiwi's AWQ of 26B-A4B has them.
TEST_P(MoeLayer, StacksOfPackedExpertsAreTheirNumbers) {
  if (config_.moe_intermediate_size % 8 != 0) GTEST_SKIP() << "its rows are no whole words";
  const TemporaryDir packed, plain;
  write_experts_packed(folder() / "backbone", packed / "model.safetensors", plain / "model.safetensors");
  std::filesystem::copy(folder() / "backbone/config.json", plain / "config.json");
  std::string config = read_text(folder() / "backbone/config.json").value();
  config.insert(config.find('{') + 1, R"("quantization_config":{"quant_method":"compressed-tensors","config_groups":{
      "group_0":{"weights":{"num_bits":4,"strategy":"group","group_size":8}}}},)");
  packed.write("config.json", config);
  const auto codes = open_weights(model_at(packed.path()), WeightType::kF32).value(),
             numbers = open_weights(model_at(plain.path()), WeightType::kF32).value();
  for (const WeightType type : {WeightType::kF32, WeightType::kInt8})
    EXPECT_EQ(output(*codes, type), output(*numbers, type)) << to_string(type);
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
