// Checkpoints that other packages quantised. tests/goldens/make_quantized_goldens.py made the files with those
// packages.
#include "common/model/checkpoint/quantized.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/compute/tensor/bf16.h"
#include "common/os/files.h"
#include "tests/support/temporary_dir.h"

namespace outrider {
namespace {

namespace fs = std::filesystem;
const fs::path kGoldens = fs::path(OUTRIDER_SOURCE_DIR) / "tests/goldens/quantized";

class Quantized : public testing::TestWithParam<std::string> {};

std::vector<std::string> every_format() {
  std::vector<std::string> names;
  std::error_code ignored;  // a build asks for the names where the tests may not lie
  for (const fs::directory_entry& entry : fs::directory_iterator(kGoldens, ignored))
    names.push_back(entry.path().filename());
  std::ranges::sort(names);
  return names;
}
INSTANTIATE_TEST_SUITE_P(Every, Quantized, testing::ValuesIn(every_format()), [](const auto& param_info) {
  std::string name = param_info.param;
  std::ranges::replace(name, '-', '_');
  return name;
});

std::vector<float> values_of(const TensorEntry& tensor) {
  std::vector<float> values(static_cast<std::size_t>(tensor.element_count()));
  const Result<void> read = read_f32(tensor, values);
  EXPECT_TRUE(read) << read.error().message;
  return values;
}

TEST_P(Quantized, GivesEveryElementOfThePackageThatWroteIt) {
  const Checkpoint coded = Checkpoint::open(kGoldens / GetParam()).value(),
                   expected = Checkpoint::open(kGoldens / GetParam() / "expected.safetensors").value();
  ASSERT_EQ(expected.tensors().size(), 1u);
  for (const TensorEntry& wanted : expected.tensors()) {
    const TensorEntry& seen = **coded.require(wanted.name, wanted.shape);
    ASSERT_TRUE(seen.coded);
    std::vector<float> ours = values_of(seen);
    const std::vector<float> theirs = values_of(wanted);
    // Packages that compute in bfloat16 round to it; ours are float32.
    for (float& value : ours) value = wanted.dtype == DType::kBf16 ? to_float(to_bf16(value)) : value;
    EXPECT_EQ(ours, theirs) << seen.type_name();
    const bool varies = std::ranges::adjacent_find(theirs, std::not_equal_to<>()) != theirs.end();
    EXPECT_TRUE(varies);
  }
}

TEST(QuantizedGrid, FourBitsThatAreSymmetricByThirtyTwoLieOnOne) {
  const auto on_grid = [](const char* format) {
    return is_on_q4_grid(*Checkpoint::open(kGoldens / format).value().find("layers.0.proj.weight"));
  };
  EXPECT_TRUE(on_grid("w4a16"));
  EXPECT_TRUE(on_grid("auto-round-4-32"));
  for (const char* const other : {"w4a16-asymmetric", "awq", "w8a16", "w8a8", "fp8-channel", "nvfp4"})
    EXPECT_FALSE(on_grid(other)) << other;
}

struct BadConfig {
  const char* name;
  const char* config;
  Errc code;
  const char* message;
};
class QuantizationConfig : public testing::TestWithParam<BadConfig> {};

TEST_P(QuantizationConfig, ThatIsMalformedIsRefusedByItsKey) {
  const TemporaryDir dir;
  fs::copy(kGoldens / "w4a16/model.safetensors", dir / "model.safetensors");
  dir.write("config.json", GetParam().config);
  const Result<Checkpoint> opened = Checkpoint::open(dir.path());
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code, GetParam().code) << opened.error().message;
  EXPECT_NE(opened.error().message.find(GetParam().message), std::string::npos) << opened.error().message;
}

INSTANTIATE_TEST_SUITE_P(
    Each, QuantizationConfig,
    testing::Values(
        BadConfig{"Number", R"({"quantization_config":4})", Errc::kMalformed,
                  "quantization_config is 4, wanted an object"},
        BadConfig{"NoMethod", R"({"quantization_config":{}})", Errc::kMalformed, "quantization_config.quant_method"},
        BadConfig{
            "OtherMethod", R"({"quantization_config":{"quant_method":"bitsandbytes"}})", Errc::kUnsupported,
            "quantization_config.quant_method is \"bitsandbytes\", wanted compressed-tensors, awq, gptq, auto-round, "
            "fp8, modelopt"},
        BadConfig{"OfTheTextModel", R"({"text_config":{"quantization_config":{"quant_method":7}}})", Errc::kMalformed,
                  "quantization_config.quant_method is 7"},
        BadConfig{"Format", R"({"quantization_config":{"quant_method":"compressed-tensors","format":"marlin-24"}})",
                  Errc::kUnsupported, "quantization_config.format is \"marlin-24\""},
        BadConfig{"Bits",
                  R"({"quantization_config":{"quant_method":"compressed-tensors",
                "config_groups":{"g":{"weights":{"num_bits":3}}}}})",
                  Errc::kMalformed, "quantization_config.config_groups.g.weights.num_bits is 3"},
        BadConfig{"OtherBits",
                  R"({"quantization_config":{"quant_method":"compressed-tensors",
                "config_groups":{"g":{"weights":{"num_bits":8}}}}})",
                  Errc::kMalformed, "which no num_bits of quantization_config.config_groups gives"},
        BadConfig{"Transform",
                  R"({"quantization_config":{"quant_method":"compressed-tensors","transform_config":{"config_groups":
                {"R4":{"type":"hadamard","apply":[{"location":"weight_input"},{"location":"input"}]}}}}})",
                  Errc::kUnsupported, "transform_config.location is \"input\", wanted weight_input"},
        BadConfig{"Groups", R"({"quantization_config":{"quant_method":"compressed-tensors","config_groups":[]}})",
                  Errc::kMalformed, "quantization_config.config_groups"},
        BadConfig{"GptqBits", R"({"quantization_config":{"quant_method":"gptq","bits":3}})", Errc::kUnsupported,
                  "quantization_config.bits is 3, wanted 2, 4 or 8"},
        BadConfig{"AwqBits", R"({"quantization_config":{"quant_method":"awq","bits":8}})", Errc::kMalformed,
                  "quantization_config.bits is 8, wanted 4"},
        BadConfig{"BlockSize", R"({"quantization_config":{"quant_method":"fp8","weight_block_size":[128]}})",
                  Errc::kMalformed, "quantization_config.weight_block_size is an array of 1, wanted two whole numbers"},
        BadConfig{"Algorithm", R"({"quantization_config":{"quant_method":"modelopt","quant_algo":"MXFP8"}})",
                  Errc::kUnsupported, "quantization_config.quant_algo is \"MXFP8\", wanted FP8"},
        BadConfig{"AwqVersion", R"({"quantization_config":{"quant_method":"awq","version":"gemv"}})",
                  Errc::kUnsupported, "quantization_config.version is \"gemv\""}),
    [](const auto& param_info) { return param_info.param.name; });

TEST(QuantizationConfigBeside, IsNamedWithItsFile) {
  const TemporaryDir dir;
  fs::copy(kGoldens / "modelopt-nvfp4", dir.path());
  dir.write("hf_quant_config.json", R"({"quantization":{"quant_algo":"W4A8_AWQ"}})");
  const Result<Checkpoint> opened = Checkpoint::open(dir.path());
  ASSERT_FALSE(opened);
  const std::string& message = opened.error().message;
  EXPECT_NE(message.find("hf_quant_config.json: quantization.quant_algo is \"W4A8_AWQ\""), std::string::npos)
      << message;
}

/// A golden with some text of its header changed; what the text is longer comes from the spaces behind the header.
fs::path changed(const TemporaryDir& dir, const char* format, const std::string& from, const std::string& to) {
  fs::copy(kGoldens / format, dir.path());
  std::string bytes = read_text(kGoldens / format / "model.safetensors").value();
  const std::size_t at = bytes.find(from);
  EXPECT_NE(at, bytes.npos) << from;
  bytes.replace(at, from.size(), to);
  bytes.erase(bytes.find("}}") + 2, to.size() - from.size());
  dir.write("model.safetensors", bytes);
  return dir.path();
}

/// A golden's folder with every element of a tensor, or only the last one, replaced by these bytes.
fs::path with_scales(const TemporaryDir& dir, const char* format, const char* tensor, const std::string& element,
                     bool all) {
  fs::copy(kGoldens / format, dir.path());
  std::string bytes = read_text(kGoldens / format / "model.safetensors").value();
  const Checkpoint golden = Checkpoint::open(kGoldens / format).value();
  const TensorEntry& scales = *golden.find(tensor);
  const std::string_view old(reinterpret_cast<const char*>(scales.bytes.data()), scales.bytes.size());
  const std::size_t begin = bytes.find(old), end = begin + old.size();
  for (std::size_t at = all ? begin : end - element.size(); at < end; at += element.size())
    bytes.replace(at, element.size(), element);
  dir.write("model.safetensors", bytes);
  return dir.path();
}

TEST(QuantizedTensors, WhoseScalesAreNoNumbersAreRefusedByName) {
  const std::string bf16_nan("\xc0\x7f", 2), f32_inf("\0\0\x80\x7f", 4), f32_zero("\0\0\0\0", 4),
      f8_nan("\x7f", 1);
  const struct {
    const char *format, *tensor;
    std::string element;
    bool all;
    const char* message;
  } kCases[] = {
      {"w4a16", "layers.0.proj.weight_scale", bf16_nan, false, "weight_scale\" has the scale nan at element 255"},
      {"w4a16", "layers.0.proj.weight_scale", std::string(2, '\0'), true, "weight_scale\" has no scale but 0"},
      {"fp8-hf-block", "layers.0.proj.weight_scale_inv", f32_inf, false, "has the scale inf at element 8"},
      {"nvfp4", "layers.0.proj.weight_scale", f8_nan, false, "has the scale nan"},
      {"nvfp4", "layers.0.proj.weight_global_scale", f32_zero, true, "weight_scale\" has the scale inf at element 0"},
  };
  for (const auto& one : kCases) {
    SCOPED_TRACE(one.format);
    const TemporaryDir dir;
    const Checkpoint opened = Checkpoint::open(with_scales(dir, one.format, one.tensor, one.element, one.all)).value();
    const Result<void> checked = opened.find("layers.0.proj.weight")->coded->check_scales();
    ASSERT_FALSE(checked);
    EXPECT_NE(checked.error().message.find(one.message), std::string::npos) << checked.error().message;
  }
  const TemporaryDir dir;  // a group of zeros
  const Checkpoint opened =
      Checkpoint::open(with_scales(dir, "w4a16", "layers.0.proj.weight_scale", std::string(2, '\0'), false)).value();
  EXPECT_TRUE(opened.find("layers.0.proj.weight")->coded->check_scales());
}

TEST(QuantizedTensors, ThatDoNotFitAreRefusedByName) {
  const struct {
    const char *format, *from, *to, *message;
  } kCases[] = {
      {"w4a16", "proj.weight_scale", "proj.weight_skale", "has no \"layers.0.proj.weight_scale\" beside it"},
      {"w4a16", "proj.weight_shape", "proj.weight_shppe", "has no \"layers.0.proj.weight_shape\" beside it"},
      {"w4a16", "[64,16]", "[16,64]", "\"layers.0.proj.weight_packed\""},
      {"w4a16", "[64,4]", "[4,64]", "tensor \"layers.0.proj.weight_scale\""},
      {"fp8-block", "[4,4]", "[5,4]", "tensor \"layers.0.proj.weight_scale\""},
      {"nvfp4", "weight_global_scale", "weight_global_skale", "has no \"layers.0.proj.weight_global_scale\""},
      {"fp8-hf-block", "weight_scale_inv", "weight_scale_inf", "has no \"layers.0.proj.weight_scale\" beside it"},
      {"fp8-hf-block", "[3,3]", "[9,1]", "tensor \"layers.0.proj.weight_scale_inv\""},
      {"fp8-block-odd", "[3,3]", "[1,9]", "tensor \"layers.0.proj.weight_scale\""},
      {"modelopt-nvfp4", "weight_scale_2", "weight_scale_3", "has no \"layers.0.proj.weight_scale_2\" beside it"},
      {"modelopt-nvfp4", ".input_scale\"", ".pre_quant_scale\"", "scales the inputs of"},
      {"gptq-desc-act", "proj.scales", "proj.skales", "has no \"layers.0.proj.scales\" beside it"},
      {"awq", "proj.qzeros", "proj.qzeroz", "has no \"layers.0.proj.qzeros\" beside it"},
  };
  for (const auto& one : kCases) {
    const TemporaryDir dir;
    const Result<Checkpoint> opened = Checkpoint::open(changed(dir, one.format, one.from, one.to));
    ASSERT_FALSE(opened) << one.from;
    EXPECT_NE(opened.error().message.find(one.message), std::string::npos) << opened.error().message;
  }
}

}  // namespace
}  // namespace outrider
