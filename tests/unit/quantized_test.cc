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

/// Opens a golden's tensors with other settings.
Result<Checkpoint> with_config(const TemporaryDir& dir, const char* golden, const char* config) {
  fs::copy(kGoldens / golden / "model.safetensors", dir / "model.safetensors");
  dir.write("config.json", config);
  return Checkpoint::open(dir.path());
}

// Of mixed precision the settings have one width (Intel's int4-mixed AutoRound, GPTQModel's `dynamic`); GPTQModel
// may write the version of its format under another key.
TEST(QuantizedGptq, TakesWidthsFromTheTensorsAndTheVersionFromEitherKey) {
  const struct {
    const char *golden, *config;
  } kCases[] = {
      {"auto-round-8-64", R"({"quantization_config":{"quant_method":"auto-round","bits":4,"group_size":64}})"},
      {"auto-round-4-32", R"({"quantization_config":{"quant_method":"auto-round","bits":2,"group_size":32}})"},
      {"auto-round-4-128",
       R"({"quantization_config":{"quant_method":"gptq","bits":4,"group_size":128,"format":"gptq_v2"}})"},
      {"auto-round-4-128", R"({"quantization_config":{"quant_method":"gptq","bits":8,"group_size":128,
          "checkpoint_format":"gptq_v2","format":"gptq"}})"},
  };
  for (const auto& one : kCases) {
    SCOPED_TRACE(one.config);
    const TemporaryDir dir;
    const Checkpoint wanted = Checkpoint::open(kGoldens / one.golden).value(),
                     seen = with_config(dir, one.golden, one.config).value();
    EXPECT_EQ(values_of(*seen.find("layers.0.proj.weight")), values_of(*wanted.find("layers.0.proj.weight")));
  }
}

// Google's unquantized QAT files.
TEST(QuantizedSettings, WithoutAMethodAreThoseOfAnUnquantisedFile) {
  const TemporaryDir dir;
  fs::copy(kGoldens / "w8a8/expected.safetensors", dir / "model.safetensors");
  dir.write("config.json", R"({"quantization_config":{"bits":4,"group_size":32}})");
  const Checkpoint opened = Checkpoint::open(dir.path()).value();
  EXPECT_FALSE(opened.find("layers.0.proj.weight")->coded);
  for (const char* const coded : {"w4a16", "w8a8", "fp8-hf-block", "mxfp4", "auto-round-4-32"}) {
    const TemporaryDir other;
    const Result<Checkpoint> refused = with_config(other, coded, R"({"quantization_config":{"bits":4}})");
    ASSERT_FALSE(refused) << coded;
    EXPECT_NE(refused.error().message.find("quantization_config.quant_method"), std::string::npos);
  }
}

TEST(QuantizedGrid, FourBitsThatAreSymmetricByThirtyTwoLieOnOne) {
  const auto on_grid = [](const char* format) {
    return is_on_q4_grid(*Checkpoint::open(kGoldens / format).value().find("layers.0.proj.weight"));
  };
  EXPECT_TRUE(on_grid("w4a16"));
  EXPECT_TRUE(on_grid("auto-round-4-32"));
  for (const char* const other : {"w4a16-asymmetric", "awq", "w8a16", "w8a8", "fp8-channel", "nvfp4", "mxfp4"})
    EXPECT_FALSE(on_grid(other)) << other;
}

TEST(QuantizedNames, SayTheFormatAndItsGroups) {
  const auto name = [](const char* format) {
    return Checkpoint::open(kGoldens / format).value().tensors().front().type_name();
  };
  EXPECT_EQ(name("mxfp4"), "mxfp4 by 32");
  EXPECT_EQ(name("mxfp8"), "mxfp8 by 32");
  EXPECT_EQ(name("nvfp4"), "nvfp4 by 16");
  EXPECT_EQ(name("fp8-tensor"), "fp8");
  EXPECT_EQ(name("w4a16-asymmetric-experts"), "int4 by 64, asymmetric");
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
  const Result<Checkpoint> opened = with_config(dir, "w4a16", GetParam().config);
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
        BadConfig{"TwoBits",
                  R"({"quantization_config":{"quant_method":"compressed-tensors",
                "config_groups":{"g":{"weights":{"num_bits":2},"input_activations":{"num_bits":8,"dynamic":false}}}}})",
                  Errc::kUnsupported, "config_groups.g.weights.num_bits is 2, wanted 4 to 8: 2-bit weights"},
        BadConfig{"FormatOfAGroup",
                  R"({"quantization_config":{"quant_method":"compressed-tensors","format":"mixed-precision",
                "config_groups":{"g":{"format":"mxfp6-pack-quantized","weights":{"num_bits":6,"type":"float"}}}}})",
                  Errc::kUnsupported, "quantization_config.config_groups.g.format is \"mxfp6-pack-quantized\""},
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
      {"mxfp4", "layers.0.proj.weight_scale", "\xff", false, "has the scale inf at element 255"},
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

TEST(QuantizedTensors, OfAStackShareNoBlock) {
  const TemporaryDir dir;
  const std::string header = R"({"e":{"dtype":"F8_E4M3","shape":[2,3,4],"data_offsets":[0,24]},)"
                             R"("e_scale_inv":{"dtype":"F32","shape":[2,2,1],"data_offsets":[24,40]}})";
  dir.write("model.safetensors",
            static_cast<char>(header.size()) + std::string(7, '\0') + header + std::string(40, '\0'));
  dir.write("config.json", R"({"quantization_config":{"quant_method":"fp8","weight_block_size":[2,4]}})");
  const Result<Checkpoint> opened = Checkpoint::open(dir.path());
  ASSERT_FALSE(opened);
  EXPECT_NE(opened.error().message.find("tensor \"e_scale_inv\" is F32"), std::string::npos) << opened.error().message;
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
      {"auto-round-8-64", "[2,16]", "[4, 8]", "tensor \"layers.0.proj.qzeros\""},
      {"mxfp4", "[64,4]", "[4,64]", "tensor \"layers.0.proj.weight_scale\""},
      {"w4a16-experts", "proj_scale", "proj_skale", "has no \"layers.0.proj_scale\" beside it"},
      {"w4a16-experts", "[4,16,4]", "[4,4,16]", "\"layers.0.proj_packed\" has 16 words a row for 0 inputs"},
      {"w4a16-experts", "[4,16,4]", "[2,32,4]", "\"layers.0.proj_scale\" has the shape [2, 32, 4], wanted 4 matrices"},
      {"w4a16-experts", "[4,16,4]", "[1,64,4]", "\"layers.0.proj_scale\" has the shape [1, 64, 4], wanted 4 matrices"},
      {"w4a16-asymmetric-experts", "[4,2,2]", "[4,4,1]", "tensor \"layers.0.proj_zero_point\""},
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
