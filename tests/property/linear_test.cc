#include "common/kernels/linear.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/base/random.h"
#include "common/kernels/gemm_onednn.h"
#include "common/kernels/kernel_table.h"

namespace outrider {
namespace {

/// One unit in the last place, relative: covers an addition that truncates as well as one that rounds.
constexpr double kEpsilon = 0x1.0p-23;

struct Shape {
  std::int64_t in, out;
  std::int64_t size() const { return in * out; }
};
// Odd ones, those of models/nano and the tiny pairs, and one of a real model.
constexpr Shape kShapes[] = {{1, 1},     {3, 5},     {33, 65},   {16, 16},   {64, 96},   {64, 192},   {96, 64},    {8, 64},     {64, 8},     {127, 31},
                             {768, 384}, {384, 32},  {32, 384},  {384, 640}, {384, 768}, {384, 1280}, {384, 3072}, {1536, 384}, {384, 8192}, {2560, 10240}};
constexpr Shape kLargest = {2560, 10240};

class LinearTest : public testing::TestWithParam<std::tuple<WeightType, Shape>> {
 protected:
  WeightType type() const { return std::get<0>(GetParam()); }
  Shape shape() const { return std::get<1>(GetParam()); }
  void SetUp() override {
    // The plain loops take minutes for this one and do nothing special for it.
    if (shape().size() == kLargest.size() && active_isa() == Isa::kScalar) GTEST_SKIP() << "too large for the scalar loops";
  }
};
INSTANTIATE_TEST_SUITE_P(All, LinearTest,
                         testing::Combine(testing::Values(WeightType::kF32, WeightType::kBf16, WeightType::kInt8), testing::ValuesIn(kShapes)),
                         [](const auto& param_info) {
                           const Shape shape = std::get<1>(param_info.param);
                           return fmt::format("{}_{}x{}", to_string(std::get<0>(param_info.param)), shape.in, shape.out);
                         });

std::vector<float> random_floats(CounterRng& rng, std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& v : values) v = static_cast<float>(rng.uniform() * 2 - 1);
  return values;
}

/// A matrix as a checkpoint holds it, in `parts` uneven pieces of dtype; the bytes are off any alignment.
struct Stored {
  Stored(CounterRng& rng, Shape shape, DType dtype, int parts) : values(random_floats(rng, shape.size())) {
    if (dtype == DType::kBf16) {
      for (float& v : values) v = to_float(to_bf16(v));
    }
    // A row of zeros: its int8 scale is 0.
    if (shape.out > 2) std::fill_n(values.begin() + shape.in, shape.in, 0.0f);
    const std::size_t row_bytes = static_cast<std::size_t>(shape.in) * size_bytes(dtype);
    std::int64_t row = 0;
    for (int p = 0; p < parts; ++p) {
      const std::int64_t rows = p == parts - 1 ? shape.out - row : (shape.out - row) / 3;
      pieces.emplace_back(static_cast<std::size_t>(rows) * row_bytes + 2);
      std::byte* to = pieces.back().data() + 2;
      for (std::int64_t i = 0; i < rows * shape.in; ++i) {
        const float v = values[static_cast<std::size_t>(row * shape.in + i)];
        const Bf16 half = to_bf16(v);
        if (dtype == DType::kF32) std::memcpy(to + i * 4, &v, 4);
        else std::memcpy(to + i * 2, &half, 2);
      }
      refs.push_back({dtype, to, rows});
      row += rows;
    }
  }
  std::vector<float> values;  ///< [out, in], as the source type holds them
  std::vector<std::vector<std::byte>> pieces;
  std::vector<WeightRows> refs;
};

/// Runs `rows` rows, given as pointers, as one batch. The padding rows of x are NaN; what lies after
/// the padding of y must stay untouched.
std::vector<float> forward(const Linear& linear, const std::vector<const float*>& rows) {
  const std::int64_t in = linear.in_features(), out = linear.out_features();
  const auto count = static_cast<std::int64_t>(rows.size());
  AlignedArray<float> x(static_cast<std::size_t>(padded_rows(count) * in)), y(static_cast<std::size_t>(padded_rows(count) * out) + 16);
  std::fill(x.span().begin(), x.span().end(), std::numeric_limits<float>::quiet_NaN());
  for (std::int64_t r = 0; r < count; ++r) std::copy_n(rows[static_cast<std::size_t>(r)], in, x.data() + r * in);
  constexpr float kGuard = -77;
  std::fill_n(y.span().end() - 16, 16, kGuard);
  linear.forward({x.data(), {count, in}}, {y.data(), {count, out}});
  EXPECT_TRUE(std::all_of(y.span().end() - 16, y.span().end(), [](float v) { return v == kGuard; })) << "wrote past the padding";
  return {y.data(), y.data() + count * out};
}

/// Row counts to try: all of 1..70, or fewer where the matrix is large. 64 is kPromptTile.
std::vector<std::int64_t> row_counts(Shape shape) {
  std::vector<std::int64_t> counts;
  if (shape.size() <= 40000) {
    for (std::int64_t n = 1; n <= 70; ++n) counts.push_back(n);
  } else if (shape.size() < 4 << 20) {
    counts = {1, 2, 3, 4, 5, 6, 8, 9, 10, 15, 16, 17, 18, 31, 33, 63, 64, 65, 70};
  } else {
    counts = {1, 2, 3, 5, 9, 16, 70};
  }
  if (active_isa() == Isa::kScalar && shape.size() > 1 << 20) counts = {1, 5, 17};
  return counts;
}

TEST_P(LinearTest, IsTheExactProductWithinItsRoundings) {
  const auto [in, out] = shape();
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    const std::uint64_t seed = static_cast<std::uint64_t>(in * 31 + out);
    SCOPED_TRACE(testing::Message() << "seed " << seed << ", source " << to_string(dtype) << ", " << onednn_version());
    CounterRng rng(seed);
    const Stored stored(rng, shape(), dtype, out >= 9 ? 3 : 1);
    const Linear linear = Linear::pack(type(), in, stored.refs);
    SCOPED_TRACE(linear.implementation());
    ASSERT_EQ(linear.in_features(), in);
    ASSERT_EQ(linear.out_features(), out);

    // Random rows of several sizes, and a row of zeros.
    constexpr std::int64_t kRows = 6;
    std::vector<float> x = random_floats(rng, kRows * in);
    for (std::int64_t i = 0; i < in; ++i) x[static_cast<std::size_t>(i)] = 0, x[static_cast<std::size_t>(in + i)] *= 1e10f, x[static_cast<std::size_t>(2 * in + i)] *= 1e-10f;
    std::vector<const float*> rows;
    for (std::int64_t r = 0; r < kRows; ++r) rows.push_back(x.data() + r * in);
    const std::vector<float> y = forward(linear, rows);

    std::vector<std::int8_t> qw(static_cast<std::size_t>(in)), qx(static_cast<std::size_t>(kRows * in));
    std::vector<float> x_scale(kRows);
    for (std::int64_t r = 0; r < kRows; ++r) x_scale[static_cast<std::size_t>(r)] = kernels().quantize(rows[static_cast<std::size_t>(r)], in, qx.data() + r * in);
    const auto as_stored = [&](float v) { return type() == WeightType::kBf16 ? to_float(to_bf16(v)) : v; };
    // Large matrices: every 7th column, so that the oracle does not take longer than what it checks.
    for (std::int64_t o = 0; o < out; o += shape().size() > 1 << 20 ? 7 : 1) {
      const float* w = stored.values.data() + o * in;
      const float w_scale = type() == WeightType::kInt8 ? kernels().quantize(w, in, qw.data()) : 0;
      for (std::int64_t r = 0; r < kRows; ++r) {
        const float actual = y[static_cast<std::size_t>(r * out + o)];
        double sum = 0, size = 0, w_size = 0, x_size = 0;
        std::int64_t integer = 0;
        for (std::int64_t i = 0; i < in; ++i) {
          const double a = as_stored(rows[static_cast<std::size_t>(r)][i]), b = as_stored(w[i]);
          sum += a * b, size += std::fabs(a * b), x_size += std::fabs(a), w_size += std::fabs(b);
          if (type() == WeightType::kInt8) integer += static_cast<std::int64_t>(qx[static_cast<std::size_t>(r * in + i)]) * qw[static_cast<std::size_t>(i)];
        }
        // Float: a product and a sum per term in any order (Higham 2002, 3.1); bf16 products are exact.
        // BF16 instructions flush denormals.
        double bound = static_cast<double>(in + 1) * kEpsilon * size + static_cast<double>(in) * 0x1.0p-126;
        if (type() == WeightType::kInt8) {
          const float row_scale = x_scale[static_cast<std::size_t>(r)];
          ASSERT_EQ(std::bit_cast<std::uint32_t>(actual), std::bit_cast<std::uint32_t>(static_cast<float>(integer) * row_scale * w_scale))
              << "row " << r << ", column " << o << ": " << actual << ", integer sum " << integer;
          // Half a step of either factor, and a few roundings of the scales.
          const double sx = row_scale * (0.5 + 127 * 4 * kEpsilon), sw = w_scale * (0.5 + 127 * 4 * kEpsilon);
          bound = x_size * sw + w_size * sx + static_cast<double>(in) * sx * sw + 8 * kEpsilon * size;
        }
        ASSERT_LE(std::fabs(actual - sum), bound) << "row " << r << ", column " << o << ": " << actual << ", expected " << sum;
      }
    }
  }
}

// The property that greedy losslessness rests on (docs/numerics.md).
TEST_P(LinearTest, ARowHasTheSameBitsAloneAndAnywhereInAnyBatch) {
  const auto [in, out] = shape();
  const std::uint64_t seed = static_cast<std::uint64_t>(in * 37 + out);
  CounterRng rng(seed);
  const Stored stored(rng, shape(), DType::kF32, 1);
  const Linear linear = Linear::pack(type(), in, stored.refs);
  SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << linear.implementation() << ", oneDNN " << onednn_version());

  const std::vector<std::int64_t> counts = row_counts(shape());
  const std::int64_t pool = shape().size() > 1 << 20 ? 20 : counts.back();
  const std::vector<float> x = random_floats(rng, pool * in);
  std::vector<std::vector<float>> alone;
  for (std::int64_t r = 0; r < pool; ++r) alone.push_back(forward(linear, {x.data() + r * in}));

  std::vector<float> poison(static_cast<std::size_t>(3 * in));
  for (std::size_t i = 0; i < poison.size(); ++i) {
    constexpr float kBad[] = {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 3e38f};
    poison[i] = kBad[i / static_cast<std::size_t>(in)];
  }
  for (const std::int64_t count : counts) {
    const bool poisoned = count % 3 != 0;
    // Any rows of the pool in any order, repeats included; -1 - p is a poison row.
    std::vector<std::int64_t> chosen;
    std::vector<const float*> rows;
    for (std::int64_t r = 0; r < count; ++r) {
      const bool bad = poisoned && rng.below(2) == 0;
      const auto i = static_cast<std::int64_t>(rng.below(bad ? 3 : static_cast<std::uint64_t>(pool)));
      chosen.push_back(bad ? -1 - i : i);
      rows.push_back(bad ? poison.data() + i * in : x.data() + i * in);
    }
    const std::vector<float> y = forward(linear, rows);
    for (std::int64_t r = 0; r < count; ++r) {
      const std::int64_t i = chosen[static_cast<std::size_t>(r)];
      if (i < 0) continue;
      const std::vector<float>& expected = alone[static_cast<std::size_t>(i)];
      if (std::memcmp(y.data() + r * out, expected.data(), static_cast<std::size_t>(out) * 4) == 0) continue;
      std::int64_t o = 0;
      while (std::memcmp(y.data() + r * out + o, expected.data() + o, 4) == 0) ++o;
      FAIL() << "row " << r << " of " << count << (poisoned ? ", inf and NaN elsewhere" : "") << ", column " << o << ": "
             << y[static_cast<std::size_t>(r * out + o)] << ", alone " << expected[static_cast<std::size_t>(o)];
    }
  }
}

TEST(LinearWeightBytes, CountWhatOneForwardReads) {
  CounterRng rng(1);
  const Stored stored(rng, {64, 96}, DType::kF32, 2);
  EXPECT_EQ(Linear::pack(WeightType::kF32, 64, stored.refs).weight_bytes(), 64u * 96 * 4);
  EXPECT_EQ(Linear::pack(WeightType::kBf16, 64, stored.refs).weight_bytes(), 64u * 96 * 2);
  EXPECT_EQ(Linear::pack(WeightType::kInt8, 64, stored.refs).weight_bytes(), 64u * 96);
}

}  // namespace
}  // namespace outrider
