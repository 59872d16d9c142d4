#include "common/compute/tensor/tensor.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include <gtest/gtest.h>

#include "common/base/random.h"
#include "common/compute/tensor/decode.h"
#include "common/compute/tensor/f16.h"
#include "common/compute/tensor/q4_grid.h"
#include "tests/support/ggml_blocks.h"

namespace outrider {
namespace {

constexpr DType kBlockTypes[] = {DType::kQ8_0, DType::kQ4_0, DType::kQ4_1, DType::kQ5_0,
                                 DType::kQ5_1, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};

class EachBlockType : public testing::TestWithParam<DType> {};

/// A block with every kind of scale, minimum and code that the format can hold.
GgmlBlock random_block(DType type, std::mt19937& random) {
  const GgmlFormat format = ggml_format(type);
  const auto draw = [&](int low, int high) { return std::uniform_int_distribution(low, high)(random); };
  GgmlBlock block;
  block.d = static_cast<std::uint16_t>(draw(0, 1) << 15 |
                                       draw(0, 0x77ff));  // any finite half below 2^15: also subnormal and negative
  block.m = static_cast<std::uint16_t>(draw(0, 1) << 15 | draw(0, 0x77ff));
  for (int run = 0; run < format.elements / format.run; ++run) {
    block.scale.push_back(draw(format.scale_min, format.scale_max));
    block.minimum.push_back(draw(0, 63));
  }
  for (int i = 0; i < format.elements; ++i) block.code.push_back(draw(format.code_min, format.code_max));
  return block;
}

// The expected values come from the definition of the format (tests/support/ggml_blocks.h), with no
// rounding but float's own.
TEST_P(EachBlockType, DecodesEveryElementExactlyAtAnyAddress) {
  const DType type = GetParam();
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::string bytes(static_cast<std::size_t>(round % 3), 'x');  // so that the blocks start anywhere
    const std::size_t start = bytes.size();
    std::vector<float> wanted;
    for (int b = 0; b < 3; ++b) {
      const GgmlBlock block = random_block(type, random);
      bytes += block.bytes(type);
      for (const float x : block.values(type)) wanted.push_back(x);
    }
    ASSERT_EQ(bytes.size() - start, stored_bytes(type, wanted.size()));
    std::vector<float> decoded(wanted.size());
    decode(type, reinterpret_cast<const std::byte*>(bytes.data() + start), decoded);
    for (std::size_t i = 0; i < wanted.size(); ++i)
      ASSERT_EQ(decoded[i], wanted[i]) << to_string(type) << " element " << i;
  }
}

// Keeps the tests' own quantiser honest, which the nano models go through.
TEST_P(EachBlockType, QuantisedWeightsStayWithinOneStep) {
  const DType type = GetParam();
  const GgmlFormat format = ggml_format(type);
  std::mt19937 random(8);
  std::normal_distribution<float> normal(0, 0.02f);
  std::vector<float> weights(512), decoded(512);
  for (float& x : weights) x = normal(random);
  const std::string bytes = encode(type, weights);
  decode(type, reinterpret_cast<const std::byte*>(bytes.data()), decoded);
  // The largest weight here is below 0.08; 6-bit scales may be off by a 63rd.
  const float step = 0.16f / static_cast<float>(format.code_max - format.code_min) * 1.2f;
  for (std::size_t i = 0; i < weights.size(); ++i)
    ASSERT_NEAR(decoded[i], weights[i], step) << to_string(type) << " element " << i;
}

INSTANTIATE_TEST_SUITE_P(Decode, EachBlockType, testing::ValuesIn(kBlockTypes),
                         [](const auto& param_info) { return std::string(to_string(param_info.param)); });

TEST(Decode, HalfsAreExact) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const float x = to_float(F16{static_cast<std::uint16_t>(bits)});
    const std::uint32_t exponent = bits >> 10 & 31;
    if (exponent == 31) {
      ASSERT_EQ(std::isnan(x), (bits & 0x3ff) != 0) << bits;
      ASSERT_TRUE(std::isnan(x) || std::isinf(x)) << bits;
      continue;
    }
    ASSERT_EQ(x, half_value(static_cast<std::uint16_t>(bits))) << bits;
    ASSERT_EQ(std::signbit(x), bits >= 0x8000) << bits;
    ASSERT_EQ(to_half(x), bits);
  }
}

TEST(Decode, FloatsAndBf16AreExact) {
  const std::vector<float> floats = {0.0f, -0.0f, 1.5f, -3.25e-30f, 7e30f};
  for (const DType type : {DType::kF32, DType::kBf16}) {
    std::vector<float> wanted = floats, decoded(floats.size());
    if (type == DType::kBf16) {
      for (float& x : wanted) x = to_float(to_bf16(x));
    }
    std::string bytes(1, '?');
    bytes += encode(type, wanted);
    decode(type, reinterpret_cast<const std::byte*>(bytes.data() + 1), decoded);
    EXPECT_EQ(decoded, wanted) << to_string(type);
    std::string ours(bytes.size(), '?');
    encode(type, floats, reinterpret_cast<std::byte*>(ours.data() + 1));
    EXPECT_EQ(ours, bytes) << to_string(type);
  }
}

TEST(Decode, EveryBf16IsExactAtAnyAddress) {
  std::vector<std::byte> bytes(1 + 2 * 0x10000);  // a tensor of a file may begin at any byte
  for (std::size_t i = 0; i < 0x10000; ++i)
    bytes[1 + 2 * i] = static_cast<std::byte>(i & 255), bytes[2 + 2 * i] = static_cast<std::byte>(i >> 8);
  std::vector<float> decoded(0x10000);
  decode(DType::kBf16, bytes.data() + 1, decoded);
  for (std::uint32_t i = 0; i < 0x10000; ++i) ASSERT_EQ(std::bit_cast<std::uint32_t>(decoded[i]), i << 16) << i;
}

// A block's scale is s = max|x| / 127 or / 8, written as f16: off by at most max(s / 2048, 2^-25). An int8 code is off
// by half of s, an int4 code by s (the greatest x of the other sign would need the code 8, and gets 7), and each stands
// for so much more or less as the written scale is off. The last term is for float's own rounding of x / s.
TEST(Encode, ABlockIsAsNearAsItsScaleAllows) {
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  for (const DType type : {DType::kQ8_0, DType::kQ4_0}) {
    const float codes = type == DType::kQ8_0 ? 127 : 8, code_error = type == DType::kQ8_0 ? 0.5f : 1.0f;
    for (int round = 0; round < 3000; ++round) {
      // From floats without a normal f16 scale to the greatest that have one.
      const float size = std::ldexp(1.0f, round % 145 - 130);
      std::vector<float> block(32), seen(32);
      for (float& x : block) x = normal(random) * size;
      if (round % 7 == 0) block[3] = -block[5];
      if (round % 11 == 0) std::ranges::fill(block, 0.0f);
      std::vector<std::byte> bytes(1 + stored_bytes(type, block.size()));
      encode(type, block, bytes.data() + 1);
      decode(type, bytes.data() + 1, seen);
      float largest = 0;
      for (const float x : block) largest = std::max(largest, std::abs(x));
      const float scale = largest / codes, scale_error = std::max(scale * 0x1p-11f, 0x1p-25f);
      for (std::size_t i = 0; i < block.size(); ++i) {
        ASSERT_LE(std::abs(seen[i] - block[i]), scale * (code_error + 1e-4f) + codes * scale_error)
            << to_string(type) << " of " << block[i] << " with the scale " << scale;
      }
      if (scale > 0x1p-14f) {  // what the header says
        for (std::size_t i = 0; i < block.size(); ++i)
          ASSERT_LE(std::abs(seen[i] - block[i]), (type == DType::kQ8_0 ? 0.57f : 1.01f) * scale);
      }
    }
  }
}

TEST(Encode, WhatIsNotFiniteShowsInItsWholeBlock) {
  for (const DType type : {DType::kQ8_0, DType::kQ4_0}) {
    for (const float wrong : {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
                              std::numeric_limits<float>::quiet_NaN(), 3e38f}) {  // the last needs too great a scale
      std::vector<float> row(64, 1.0f), seen(64);
      row[40] = wrong;
      std::vector<std::byte> bytes(stored_bytes(type, row.size()));
      encode(type, row, bytes.data());
      decode(type, bytes.data(), seen);
      for (std::size_t i = 0; i < 64; ++i) EXPECT_EQ(std::isfinite(seen[i]), i < 32) << i;
      F16 scale;
      std::memcpy(&scale, bytes.data() + bytes.size() / 2, sizeof scale);
      EXPECT_FALSE(std::isfinite(to_float(scale))) << to_string(type) << " of " << wrong;
    }
  }
}

TEST(DecodeDeathTest, PartsOfBlocksAndIntegersAreOurBugs) {
  const std::vector<std::byte> bytes(256);
  std::vector<float> out(33);
  EXPECT_DEATH(decode(DType::kQ8_0, bytes.data(), out), "33 elements of Q8_0, wanted a multiple of 32");
  EXPECT_DEATH(decode(DType::kI32, bytes.data(), out), "I32 elements are no floats");
  EXPECT_DEATH((void)size_bytes(DType::kQ4_K), "one element of Q4_K has no bytes of its own");
  EXPECT_DEATH((void)stored_bytes(DType::kQ6_K, 100), "100 elements of Q6_K, wanted a multiple of 256");
}

// ---- 4-bit grids ----

std::vector<float> grid_of(CounterRng& rng, float d) {
  std::vector<float> values;
  for (int i = 0; i < 32; ++i) values.push_back(d * static_cast<float>(static_cast<int>(rng.below(16)) - 8));
  return values;
}
std::vector<float> values_of(const Q4Group& group) {
  std::vector<float> values;
  for (const std::uint8_t code : group.code) values.push_back(group.d * static_cast<float>(code - 8));
  return values;
}

TEST(Q4Grid, EveryQ4_0BlockIsKept) {
  CounterRng rng(81);
  for (int i = 0; i < 5000; ++i) {
    std::vector<std::byte> block(18);
    for (std::byte& byte : block) byte = static_cast<std::byte>(rng.next());
    if ((std::to_integer<int>(block[1]) & 0x7c) == 0x7c) continue;  // no finite step
    std::vector<float> values(32);
    decode(DType::kQ4_0, block.data(), values);
    const Q4Group group = find_q4_group(values);
    ASSERT_TRUE(group.exact) << i;
    ASSERT_EQ(values_of(group), values) << i;
  }
}

TEST(Q4Grid, BfloatsThatWereRoundedFromAGridLieOnIt) {
  CounterRng rng(82);
  for (int i = 0; i < 5000; ++i) {
    const auto wide = static_cast<float>(0.001 + rng.uniform()) * (i % 2 == 0 ? 1.0f : -1.0f);
    const float d = i % 3 == 0 ? to_float(to_bf16(wide)) : to_float(to_f16(wide));
    const std::vector<float> grid = grid_of(rng, d);
    std::vector<float> rounded;
    for (const float v : grid) rounded.push_back(to_float(to_bf16(v)));
    const Q4Group group = find_q4_group(rounded);
    ASSERT_TRUE(group.exact) << i;
    for (std::size_t k = 0; k < 32; ++k)
      ASSERT_EQ(to_float(to_bf16(values_of(group)[k])), rounded[k]) << i << ", " << k;
  }
}

TEST(Q4Grid, OtherWeightsDoNotLieOnOneAndAreRoundedAsGgmlDoes) {
  CounterRng rng(83);
  for (int i = 0; i < 2000; ++i) {
    std::vector<float> values(32), ggml(32);
    for (float& v : values) v = to_float(to_bf16(static_cast<float>(rng.uniform() * 2 - 1)));
    const Q4Group group = find_q4_group(values);
    EXPECT_FALSE(group.exact) << i;
    std::vector<std::byte> block(18);
    encode_q4_0(values, block.data());
    decode(DType::kQ4_0, block.data(), ggml);
    EXPECT_EQ(values_of(group), ggml) << i;
    // One weight off a grid is enough.
    std::vector<float> almost = grid_of(rng, 0.25f);
    almost[rng.below(32)] = 0.3f;
    EXPECT_FALSE(is_on_q4_grid(almost)) << i;
  }
  std::vector<float> odd(40, 0.5f);
  EXPECT_TRUE(is_on_q4_grid(odd));
  odd[39] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(is_on_q4_grid(odd));
  EXPECT_TRUE(is_on_q4_grid(std::vector<float>(64)));
}

}  // namespace
}  // namespace outrider
