// Weights that no model can have: refused by name when they are read, whatever they are packed as.
#include "common/model/gemma4/weights.h"

#include <cstring>
#include <fstream>
#include <limits>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/support/gguf_writer.h"
#include "tests/support/model_at.h"
#include "tests/support/temporary_dir.h"

namespace outrider {
namespace {

/// Writes one tensor as model.safetensors.
void write_tensor(const TemporaryDir& dir, const char* name, const char* dtype, const std::string& shape,
                  const std::string& data) {
  const std::string header =
      fmt::format(R"({{"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[0,{}]}}}})", name, dtype, shape, data.size());
  dir.write("model.safetensors", raw_bytes(std::uint64_t{header.size()}) + header + data);
}
void write_tensor(const TemporaryDir& dir, const std::string& shape, const std::vector<float>& values) {
  write_tensor(dir, "w.weight", "F32", shape,
               {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)});
}

constexpr float kNan = std::numeric_limits<float>::quiet_NaN(), kInfinity = std::numeric_limits<float>::infinity();

TEST(Weights, ThatAreNotFiniteAreRefusedByName) {
  for (const WeightType type : kWeightTypes) {
    for (const auto& [bad, text] : {std::pair(kNan, "nan"), std::pair(kInfinity, "inf"), {-kInfinity, "-inf"}}) {
      const TemporaryDir dir;
      std::vector<float> values(3 * 64, 0.5f);
      values[64 + 5] = bad;
      write_tensor(dir, "3,64", values);
      const auto weights = open_weights(model_at(dir.path()), type).value();
      const std::string wanted =
          fmt::format("tensor \"w.weight\" is {} at element 69, wanted a finite number", text);
      const WeightReader reader(*weights, "");
      const Result<Linear> linear = reader.linear(64, {{"w", 3}});
      ASSERT_FALSE(linear) << to_string(type);
      EXPECT_NE(linear.error().message.find(wanted), std::string::npos) << linear.error().message;
      const std::vector<TokenId> order = {2, 0, 1};
      const auto rows = weights->ordered_rows("w.weight", 64, order);
      ASSERT_FALSE(rows);
      EXPECT_NE(rows.error().message.find(wanted), std::string::npos) << rows.error().message;
    }
  }
}

// As the experts of a mixture, but without their scales.
TEST(Weights, OfFp8WithoutScalesAreRefusedByName) {
  for (const char* settings :
       {"{}", R"({"quantization_config": {"quant_method": "fp8"}})",
        R"({"quantization_config": {"quant_method": "modelopt", "quant_algo": "FP8"}})",
        R"({"quantization_config": {"quant_method": "compressed-tensors", "format": "float-quantized"}})"}) {
    SCOPED_TRACE(settings);
    const TemporaryDir dir;
    dir.write("config.json", settings);
    write_tensor(dir, "experts.gate_up_proj", "F8_E4M3", "2,4,64", std::string(2 * 4 * 64, '\x38'));
    const auto weights = open_weights(model_at(dir.path()), WeightType::kBf16).value();
    const auto refused = [](const auto& read) {
      ASSERT_FALSE(read);
      const std::string& message = read.error().message;
      EXPECT_NE(message.find("tensor 'experts.gate_up_proj' is F8_E4M3, wanted F32"), std::string::npos) << message;
    };
    refused(WeightReader(*weights, "").experts(2, 64, {{"experts.gate_up_proj", 4}}, {}));
    refused(weights->table("experts.gate_up_proj", 8, 64));
    refused(weights->vector("experts.gate_up_proj", 512));
  }
}

TEST(Weights, OfANormAreFiniteAndABoundIsANumber) {
  const auto message_of = [](const std::vector<float>& values) {
    const TemporaryDir dir;
    write_tensor(dir, fmt::format("{}", values.size()), values);
    const auto read = open_weights(model_at(dir.path()), WeightType::kInt8).value()->vector(
        "w.weight", std::ssize(values));
    return read ? "" : read.error().message;
  };
  EXPECT_NE(message_of({1, 2, kNan}).find("tensor \"w.weight\" is nan at element 2"), std::string::npos);
  EXPECT_NE(message_of({1, kInfinity}).find("tensor \"w.weight\" is inf at element 1"), std::string::npos);
  EXPECT_NE(message_of({kNan}).find("tensor \"w.weight\" is nan at element 0"), std::string::npos);
  EXPECT_EQ(message_of({-kInfinity}), "") << "published towers bound nothing so";
  EXPECT_EQ(message_of({1, 2}), "");
}

}  // namespace
}  // namespace outrider
