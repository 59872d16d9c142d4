#include "common/compute/kernels/linear.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "common/base/random.h"
#include "common/compute/kernels/int4.h"
#include "common/compute/kernels/isa.h"
#include "common/compute/kernels/kernel_table.h"
#include "common/compute/kernels/q4.h"
#include "common/compute/kernels/team.h"
#include "common/compute/kernels/weight_layout.h"

namespace outrider {
namespace {

/// One unit in the last place, relative: covers an addition that truncates as well as one that rounds.
constexpr double kEpsilon = 0x1.0p-23;

struct Shape {
  std::int64_t in, out;
  std::int64_t size() const { return in * out; }
};
// Odd ones, those of models/nano and the tiny pairs, and one of a real model.
constexpr Shape kShapes[] = {{1, 1},     {3, 5},     {33, 17},    {33, 65},    {16, 16},    {64, 96},    {64, 192},
                             {96, 64},   {8, 64},    {64, 8},     {127, 31},   {768, 384},  {384, 32},   {32, 384},
                             {384, 640}, {384, 768}, {384, 1280}, {384, 3072}, {1536, 384}, {384, 8192}, {2560, 10240},
                             {1152, 32}};
constexpr Shape kLargest = {2560, 10240};

class LinearTest : public testing::TestWithParam<std::tuple<WeightType, Shape>> {
 protected:
  WeightType type() const { return std::get<0>(GetParam()); }
  Shape shape() const { return std::get<1>(GetParam()); }
  void SetUp() override {
    // The plain loops take minutes for this one and do nothing special for it.
    if (shape().size() == kLargest.size() && active_isa() == Isa::kScalar)
      GTEST_SKIP() << "too large for the scalar loops";
  }
};
std::string case_name(const testing::TestParamInfo<LinearTest::ParamType>& param_info) {
  const Shape shape = std::get<1>(param_info.param);
  return fmt::format("{}_{}x{}", to_string(std::get<0>(param_info.param)), shape.in, shape.out);
}
INSTANTIATE_TEST_SUITE_P(All, LinearTest,
                         testing::Combine(testing::Values(WeightType::kF32, WeightType::kBf16, WeightType::kInt8,
                                                          WeightType::kInt4, WeightType::kQ4),
                                          testing::ValuesIn(kShapes)),
                         case_name);
/// The types whose product is that of the stored elements; int4 and q4 have tests of their own.
class LinearOfElements : public LinearTest {};
INSTANTIATE_TEST_SUITE_P(All, LinearOfElements,
                         testing::Combine(testing::Values(WeightType::kF32, WeightType::kBf16, WeightType::kInt8),
                                          testing::ValuesIn(kShapes)),
                         case_name);
class Int4Linear : public LinearTest {};
INSTANTIATE_TEST_SUITE_P(All, Int4Linear,
                         testing::Combine(testing::Values(WeightType::kInt4), testing::ValuesIn(kShapes)), case_name);
class Q4Linear : public LinearTest {};
INSTANTIATE_TEST_SUITE_P(All, Q4Linear, testing::Combine(testing::Values(WeightType::kQ4), testing::ValuesIn(kShapes)),
                         case_name);
class ChunkLinear : public LinearTest {};
INSTANTIATE_TEST_SUITE_P(All, ChunkLinear,
                         testing::Combine(testing::Values(WeightType::kInt4, WeightType::kQ4),
                                          testing::ValuesIn(kShapes)),
                         case_name);

std::vector<float> random_floats(CounterRng& rng, std::int64_t count) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& v : values) v = static_cast<float>(rng.uniform() * 2 - 1);
  return values;
}

/// As the integer types store it, but for their rounding.
std::vector<float> rotated(const float* row, std::int64_t n) {
  std::vector<float> y(row, row + n);
  kernels().rotate(y.data(), n);
  return y;
}
double squares(const float* x, std::int64_t n) {
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * x[i];
  return sum;
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
        if (dtype == DType::kF32)
          std::memcpy(to + i * 4, &v, 4);
        else
          std::memcpy(to + i * 2, &half, 2);
      }
      refs.push_back(WeightRows::of(dtype, to, rows));
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
  AlignedArray<float> x(static_cast<std::size_t>(padded_rows(count) * in)),
      y(static_cast<std::size_t>(padded_rows(count) * out) + 16);
  std::fill(x.span().begin(), x.span().end(), std::numeric_limits<float>::quiet_NaN());
  for (std::int64_t r = 0; r < count; ++r) std::copy_n(rows[static_cast<std::size_t>(r)], in, x.data() + r * in);
  constexpr float kGuard = -77;
  std::fill_n(y.span().end() - 16, 16, kGuard);
  linear.forward({x.data(), {count, in}}, {y.data(), {count, out}});
  EXPECT_TRUE(std::all_of(y.span().end() - 16, y.span().end(), [](float v) { return v == kGuard; }))
      << "wrote past the padding";
  return {y.data(), y.data() + count * out};
}

/// Row counts to try: all of 1..70, or fewer where the matrix is large. 64 is kPromptHeight.
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

TEST_P(LinearOfElements, IsTheExactProductWithinItsRoundings) {
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
    for (std::int64_t i = 0; i < in; ++i)
      x[static_cast<std::size_t>(i)] = 0, x[static_cast<std::size_t>(in + i)] *= 1e10f,
      x[static_cast<std::size_t>(2 * in + i)] *= 1e-10f;
    std::vector<const float*> rows;
    for (std::int64_t r = 0; r < kRows; ++r) rows.push_back(x.data() + r * in);
    const std::vector<float> y = forward(linear, rows);

    std::vector<std::int8_t> qw(static_cast<std::size_t>(in)), qx(static_cast<std::size_t>(kRows * in));
    std::vector<float> x_scale(kRows);
    std::vector<double> x_size(kRows, 0);
    for (std::size_t r = 0; r < rows.size(); ++r) {
      const std::vector<float> stored_x = rotated(rows[r], in);
      x_scale[r] = kernels().quantize(stored_x.data(), in, qx.data() + static_cast<std::int64_t>(r) * in);
      for (const float v : stored_x) x_size[r] += std::fabs(v);
    }
    const auto as_stored = [&](float v) { return type() == WeightType::kBf16 ? to_float(to_bf16(v)) : v; };
    // Large matrices: every 7th column, so that the oracle does not take longer than what it checks.
    for (std::int64_t o = 0; o<out; o += shape().size()> 1 << 20 ? 7 : 1) {
      const float* w = stored.values.data() + o * in;
      const std::vector<float> stored_w = rotated(w, in);
      const float w_scale = type() == WeightType::kInt8 ? kernels().quantize(stored_w.data(), in, qw.data()) : 0;
      for (std::int64_t r = 0; r < kRows; ++r) {
        const float actual = y[static_cast<std::size_t>(r * out + o)];
        double sum = 0, size = 0, w_size = 0;
        std::int64_t integer = 0;
        for (std::int64_t i = 0; i < in; ++i) {
          const double a = as_stored(rows[static_cast<std::size_t>(r)][i]), b = as_stored(w[i]);
          sum += a * b, size += std::fabs(a * b), w_size += std::fabs(stored_w[static_cast<std::size_t>(i)]);
          if (type() == WeightType::kInt8)
            integer +=
                static_cast<std::int64_t>(qx[static_cast<std::size_t>(r * in + i)]) * qw[static_cast<std::size_t>(i)];
        }
        // Float: a product and a sum per term in any order (Higham 2002, 3.1); bf16 products are exact.
        // BF16 instructions flush denormals.
        double bound = static_cast<double>(in + 1) * kEpsilon * size + static_cast<double>(in) * 0x1.0p-126;
        if (type() == WeightType::kInt8) {
          const float row_scale = x_scale[static_cast<std::size_t>(r)];
          ASSERT_EQ(std::bit_cast<std::uint32_t>(actual),
                    std::bit_cast<std::uint32_t>(static_cast<float>(integer) * row_scale * w_scale))
              << "row " << r << ", column " << o << ": " << actual << ", integer sum " << integer;
          // Half a step of either factor, a few roundings of the scales, and those of both rotations.
          const double sx = row_scale * (0.5 + 127 * 4 * kEpsilon), sw = w_scale * (0.5 + 127 * 4 * kEpsilon);
          bound = x_size[static_cast<std::size_t>(r)] * sw + w_size * sx + static_cast<double>(in) * sx * sw +
                  8 * kEpsilon * size +
                  32 * kEpsilon * std::sqrt(squares(rows[static_cast<std::size_t>(r)], in) * squares(w, in));
        }
        ASSERT_LE(std::fabs(actual - sum), bound)
            << "row " << r << ", column " << o << ": " << actual << ", expected " << sum;
      }
    }
  }
}

/// The int8 weight that stands for the element, of an image of steps * 64 inputs.
int int4_weight(std::span<const std::byte> image, std::int64_t steps, std::int64_t output, std::int64_t i) {
  const auto* const chunks = reinterpret_cast<const Int4Chunk*>(image.data());
  const Int4Chunk& chunk = chunks[(output / 64 * steps + i / 64) * 2 + output / 32 % 2];
  const std::int64_t half = output / 16 % 2, lane = output % 16;
  const std::int64_t g = i / 32 % 2;
  const int group = chunk.group[half][g][lane], pair = chunk.nibbles[half][g][i % 16 / 4][4 * lane + i % 4];
  return (i / 16 % 2 == 0 ? pair & 15 : pair >> 4) * int4_multiplier(group) - int4_zero(group);
}

TEST_P(Int4Linear, IsTheExactIntegerProductAndCloseToTheFloatProduct) {
  const auto [in, out] = shape();
  const std::uint64_t seed = static_cast<std::uint64_t>(in * 41 + out);
  CounterRng rng(seed);
  const Stored stored(rng, shape(), DType::kF32, out >= 9 ? 3 : 1);
  const Linear linear = Linear::pack(type(), in, stored.refs);
  SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << linear.implementation());
  const PackedWeights image = linear.packed();
  ASSERT_EQ(image.layout, "int4.g32.v2");
  ASSERT_EQ(linear.weight_bytes(), image.bytes.size());

  constexpr std::int64_t kRows = 6;
  const std::int64_t steps = (in + 63) / 64;
  std::vector<float> x = random_floats(rng, kRows * in);
  for (std::int64_t i = 0; i < in; ++i)
    x[static_cast<std::size_t>(i)] = 0, x[static_cast<std::size_t>(in + i)] *= 1e10f,
    x[static_cast<std::size_t>(2 * in + i)] *= 1e-10f;
  std::vector<const float*> rows;
  std::vector<std::int8_t> qx(static_cast<std::size_t>(kRows * in));
  std::vector<float> x_scale;
  for (std::int64_t r = 0; r < kRows; ++r) {
    rows.push_back(x.data() + r * in);
    x_scale.push_back(kernels().quantize(rotated(rows.back(), in).data(), in, qx.data() + r * in));
  }
  const std::vector<float> y = forward(linear, rows);

  for (std::int64_t o = 0; o<out; o += shape().size()> 1 << 20 ? 7 : 1) {
    const float* w = stored.values.data() + o * in;
    const float w_scale = image.scales[static_cast<std::size_t>(o)];
    const std::vector<float> stored_w = rotated(w, in);
    const float w_largest = std::fabs(*std::ranges::max_element(stored_w, {}, [](float v) { return std::fabs(v); }));
    std::vector<int> weights;
    double w_error_squares = 0, w_sizes = 0;
    for (std::int64_t i = 0; i < in; ++i) {
      weights.push_back(int4_weight(image.bytes, steps, o, i));
      w_error_squares +=
          std::pow(weights.back() * static_cast<double>(w_scale) - stored_w[static_cast<std::size_t>(i)], 2);
      w_sizes += std::fabs(weights.back() * static_cast<double>(w_scale));
    }
    // Half a step of a group is at most a fifteenth of its largest weight, but for the rounding of a multiplier.
    ASSERT_LE(w_error_squares, static_cast<double>(in) * std::pow(w_largest * 1.07 / 15, 2)) << "column " << o;
    for (std::int64_t r = 0; r < kRows; ++r) {
      const float actual = y[static_cast<std::size_t>(r * out + o)], row_scale = x_scale[static_cast<std::size_t>(r)];
      std::int64_t product = 0;
      double sum = 0, x_squares = 0;
      for (std::int64_t i = 0; i < in; ++i) {
        const double a = rows[static_cast<std::size_t>(r)][i];
        product +=
            static_cast<std::int64_t>(qx[static_cast<std::size_t>(r * in + i)]) * weights[static_cast<std::size_t>(i)];
        sum += a * w[i], x_squares += a * a;
      }
      ASSERT_EQ(std::bit_cast<std::uint32_t>(actual),
                std::bit_cast<std::uint32_t>(static_cast<float>(product) * row_scale * w_scale))
          << "row " << r << ", column " << o << ": " << actual << ", integer sum " << product;
      // x . w - x' . w' = x . (w - w') + (x - x') . w': Cauchy and Schwarz for the first, half a step of x for the
      // second, all rotated; then the roundings of the scales and of the rotations.
      const double bound = std::sqrt(x_squares * w_error_squares) + row_scale * (0.5 + 127 * 8 * kEpsilon) * w_sizes +
                           1e-44 + 32 * kEpsilon * std::sqrt(x_squares * squares(w, in));
      ASSERT_LE(std::fabs(actual - sum), bound)
          << "row " << r << ", column " << o << ": " << actual << ", expected " << sum;
    }
  }
}

/// Weights on grids of 32 inputs whose steps have `bits` significant bits and exponents that `spread` binades hold.
std::vector<float> grid_weights(CounterRng& rng, Shape shape, int bits, std::uint64_t spread) {
  std::vector<float> values(static_cast<std::size_t>(shape.size()));
  for (std::int64_t o = 0; o < shape.out; ++o) {
    for (std::int64_t i = 0, d = 0; i < shape.in; ++i) {
      if (i % 32 == 0) d = static_cast<std::int64_t>((1u << (bits - 1)) + rng.below(1u << (bits - 1)));
      const int exponent =
          -15 - static_cast<int>((static_cast<std::uint64_t>(o) * 7 + static_cast<std::uint64_t>(i / 32)) % spread);
      values[static_cast<std::size_t>(o * shape.in + i)] =
          std::ldexp(static_cast<float>(d * (static_cast<std::int64_t>(rng.below(16)) - 8)), exponent);
    }
  }
  return values;
}

// q4 keeps what a 4-bit file holds, and its products are as near as 16 bits of inputs can be.
TEST_P(Q4Linear, KeepsAGridExactlyAndRoundsInputsOnly) {
  const auto [in, out] = shape();
  CounterRng rng(static_cast<std::uint64_t>(in * 53 + out));
  for (const auto& [bits, spread] : {std::pair{11, std::uint64_t{1}}, std::pair{8, std::uint64_t{20}}}) {
    const std::vector<float> values = grid_weights(rng, shape(), bits, spread);
    const auto rows_of = WeightRows::of(DType::kF32, reinterpret_cast<const std::byte*>(values.data()), out);
    const Linear linear = Linear::pack(type(), in, {&rows_of, 1});
    SCOPED_TRACE(linear.implementation());
    ASSERT_EQ(linear.packed().layout, "q4.g32.v1");
    ASSERT_EQ(linear.weight_bytes(), linear.packed().bytes.size());
    constexpr std::int64_t kRows = 6;
    std::vector<float> x = random_floats(rng, kRows * in);
    for (std::int64_t i = 0; i < in; ++i)
      x[static_cast<std::size_t>(i)] = 0, x[static_cast<std::size_t>(in + i)] *= 1e10f,
      x[static_cast<std::size_t>(2 * in + i)] *= 1e-10f;
    // A one alone gives its weight, exactly.
    const std::int64_t at = static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(in)));
    std::fill_n(x.begin() + 3 * in, in, 0.0f);
    x[static_cast<std::size_t>(3 * in + at)] = 32639;
    std::vector<const float*> rows;
    for (std::int64_t r = 0; r < kRows; ++r) rows.push_back(x.data() + r * in);
    const std::vector<float> y = forward(linear, rows);
    for (std::int64_t o = 0; o<out; o += shape().size()> 1 << 20 ? 7 : 1) {
      const float* const w = values.data() + o * in;
      ASSERT_EQ(y[static_cast<std::size_t>(3 * out + o)], w[at] * 32639) << "column " << o;
      for (std::int64_t r = 0; r < kRows; ++r) {
        double sum = 0, bound = 0;
        for (std::int64_t g = 0; g < in; g += 32) {
          double largest = 0, sizes = 0;
          for (std::int64_t i = g; i < std::min(in, g + 32); ++i) {
            const double a = rows[static_cast<std::size_t>(r)][i];
            sum += a * w[i], largest = std::max(largest, std::fabs(a)), sizes += std::fabs(w[i]);
          }
          // Half a unit of an input, and the roundings of scales and sums.
          bound += largest * sizes * (0.5 / 32639 + static_cast<double>(in / 32 + 4) * kEpsilon);
        }
        ASSERT_LE(std::fabs(y[static_cast<std::size_t>(r * out + o)] - sum), bound + 1e-37) << "row " << r << ", " << o;
      }
    }
  }
}

TEST_P(ChunkLinear, TheNumberOfThreadsDoesNotMatter) {
  const auto [in, out] = shape();
  CounterRng rng(43);
  const Stored stored(rng, shape(), DType::kF32, 1);
  const std::vector<float> x = random_floats(rng, 5 * in);
  std::vector<const float*> rows;
  for (std::int64_t r = 0; r < 5; ++r) rows.push_back(x.data() + r * in);
  const int threads = team_size();
  std::vector<std::vector<std::byte>> images;
  std::vector<std::vector<float>> results;
  for (const int count : {1, 2}) {
    set_team_size(count);
    const Linear linear = Linear::pack(type(), in, stored.refs);
    const std::span<const std::byte> weights = linear.packed().bytes;
    images.emplace_back(weights.begin(), weights.end());
    results.push_back(forward(linear, rows));
  }
  set_team_size(threads);
  EXPECT_EQ(images[0], images[1]);
  EXPECT_EQ(results[0], results[1]);
}

// The property that greedy losslessness rests on (docs/numerics.md).
TEST_P(LinearTest, ARowHasTheSameBitsAloneAndAnywhereInAnyBatch) {
  const auto [in, out] = shape();
  const std::uint64_t seed = static_cast<std::uint64_t>(in * 37 + out);
  CounterRng rng(seed);
  const Stored stored(rng, shape(), DType::kF32, 1);
  const Linear linear = Linear::pack(type(), in, stored.refs);
  SCOPED_TRACE(testing::Message() << "seed " << seed << ", " << linear.implementation() << ", oneDNN "
                                  << onednn_version());

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
      FAIL() << "row " << r << " of " << count << (poisoned ? ", inf and NaN elsewhere" : "") << ", column " << o
             << ": " << y[static_cast<std::size_t>(r * out + o)] << ", alone " << expected[static_cast<std::size_t>(o)];
    }
  }
}

// ---- images ----

/// An image's weights in pages that can only be read, with pages that cannot be touched on either side.
class ReadOnly {
 public:
  /// @param shift bytes from a 64-byte boundary. Where the size allows it the weights end where the page does.
  explicit ReadOnly(std::span<const std::byte> bytes, std::size_t shift = 0) {
    constexpr std::size_t kPage = 4096;
    const std::size_t room = (bytes.size() + shift + kPage - 1) / kPage * kPage;
    const std::size_t total = room + 2 * kPage;
    void* const pages = mmap(nullptr, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pages != MAP_FAILED);
    pages_ = std::shared_ptr<std::byte>(static_cast<std::byte*>(pages), [total](std::byte* p) { munmap(p, total); });
    std::byte* const start = pages_.get() + kPage + (room - bytes.size() - shift) / 64 * 64 + shift;
    std::copy(bytes.begin(), bytes.end(), start);
    CHECK(mprotect(pages, total, PROT_NONE) == 0);
    CHECK(mprotect(pages_.get() + kPage, room, PROT_READ) == 0);
    bytes_ = {start, bytes.size()};
  }
  std::span<const std::byte> bytes() const { return bytes_; }
  const std::shared_ptr<std::byte>& pages() const { return pages_; }

 private:
  std::shared_ptr<std::byte> pages_;
  std::span<const std::byte> bytes_;
};

/// The results of 1, 5, 16 and 70 rows.
std::vector<float> results_of(const Linear& linear) {
  CounterRng rng(51);
  const std::vector<float> x = random_floats(rng, 70 * linear.in_features());
  std::vector<float> all;
  for (const std::size_t count : {1, 5, 16, 70}) {
    if (count > 16 && linear.in_features() * linear.out_features() > 1 << 20) continue;
    std::vector<const float*> rows;
    for (std::size_t r = 0; r < count; ++r)
      rows.push_back(x.data() + static_cast<std::int64_t>(r) * linear.in_features());
    const std::vector<float> some = forward(linear, rows);
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

std::size_t stored_bytes(WeightType type) { return type == WeightType::kF32 ? 4 : type == WeightType::kBf16 ? 2 : 1; }

/// An image's weights moved into another layout.
std::vector<std::byte> relaid(const PackedWeights& image, WeightType type, Shape shape, const std::string& layout) {
  const WeightLayout from = WeightLayout::parse(image.layout, shape.in, shape.out).value(),
                     to = WeightLayout::parse(layout, shape.in, shape.out).value();
  const auto from_in = from.offsets(0), from_out = from.offsets(1), to_in = to.offsets(0), to_out = to.offsets(1);
  const std::size_t element = stored_bytes(type);
  std::vector<std::byte> bytes(to.bytes(element));
  for (std::size_t o = 0; o < to_out.size(); ++o) {
    for (std::size_t i = 0; i < to_in.size(); ++i) {
      std::memcpy(bytes.data() + static_cast<std::size_t>(to_in[i] + to_out[o]) * element,
                  image.bytes.data() + static_cast<std::size_t>(from_in[i] + from_out[o]) * element, element);
    }
  }
  return bytes;
}

TEST_P(LinearTest, AGroupHasTheBitsThatItsMatrixGivesAlone) {
  const auto [in, out] = shape();
  if (shape().size() == kLargest.size()) GTEST_SKIP() << "a few of these take long, and do nothing special";
  CounterRng rng(static_cast<std::uint64_t>(in * 41 + out));
  // Rows for vectors and for tiles next to each other, one tile and more.
  const std::vector<std::int64_t> counts = {1, 20, 3, 1, 9, 40, 2, 16};
  std::vector<Linear> matrices;
  std::vector<Linear::Group> groups;
  for (std::size_t g = 0; g < counts.size(); ++g)
    matrices.push_back(Linear::pack(type(), in, Stored(rng, shape(), DType::kF32, 1).refs));
  std::int64_t all = 0;
  for (std::size_t g = 0; g < counts.size(); ++g, all += counts[g - 1]) groups.push_back({&matrices[g], counts[g]});
  AlignedArray<float> x(static_cast<std::size_t>((all + kGemmHeight) * in)),
      y(static_cast<std::size_t>((all + kGemmHeight) * out));
  std::ranges::copy(random_floats(rng, all * in), x.data());
  const int threads = team_size();
  for (const int team : {1, 3}) {
    set_team_size(team);
    std::ranges::fill(y.span(), std::numeric_limits<float>::quiet_NaN());
    Linear::forward_groups(groups, {x.data(), {all, in}}, {y.data(), {all, out}});
    std::int64_t first = 0;
    for (const auto& [linear, count] : groups) {
      std::vector<const float*> rows;
      for (std::int64_t r = first; r < first + count; ++r) rows.push_back(x.data() + r * in);
      const std::vector<float> alone = forward(*linear, rows);
      ASSERT_EQ(std::memcmp(y.data() + first * out, alone.data(), alone.size() * sizeof(float)), 0)
          << count << " rows from " << first << ", " << team << " threads, " << linear->implementation();
      first += count;
    }
  }
  set_team_size(threads);
}

TEST_P(LinearTest, SelectedOutputsAreThoseOfTheWhole) {
  const auto [in, out] = shape();
  CounterRng rng(static_cast<std::uint64_t>(in * 47 + out));
  const Stored stored(rng, shape(), DType::kF32, 1);
  const Linear all = Linear::pack(type(), in, stored.refs);
  std::vector<std::int32_t> outputs;
  for (std::int64_t i = 0; i < 70; ++i)
    outputs.push_back(static_cast<std::int32_t>(rng.below(static_cast<std::uint64_t>(out))));
  const Linear some = all.select(outputs);
  ASSERT_EQ(some.out_features(), std::ssize(outputs));
  constexpr std::int64_t kRows = 3;
  Tensor x(padded_rows(kRows), in), y(padded_rows(kRows), out), chosen(padded_rows(kRows), std::ssize(outputs));
  for (std::int64_t r = 0; r < kRows; ++r)
    for (float& value : x.view()[r].span()) value = static_cast<float>(2 * rng.uniform() - 1);
  all.forward(x.view().rows(0, kRows), y.view().rows(0, kRows));
  some.forward(x.view().rows(0, kRows), chosen.view().rows(0, kRows));
  for (std::int64_t r = 0; r < kRows; ++r)
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      // Sums of integers are exact. Floats are summed in an order that may depend on the matrix's height: each of the
      // sum's additions rounds once, of numbers whose size is at most the sum of their sizes.
      const bool exact = type() == WeightType::kInt8 || type() == WeightType::kInt4 || type() == WeightType::kQ4;
      const double bound = exact ? 0 : 2e-7 * static_cast<double>(in * in);
      ASSERT_NEAR(chosen.view()[r][static_cast<std::int64_t>(i)], y.view()[r][outputs[i]], bound) << outputs[i];
    }
}

TEST_P(LinearTest, APartHasTheBitsOfTheWhole) {
  const auto [in, out] = shape();
  CounterRng rng(static_cast<std::uint64_t>(in * 53 + out));
  const Stored stored(rng, shape(), DType::kF32, 1);
  const Linear all = Linear::pack(type(), in, stored.refs);
  const Columns columns[] = {{out / 4, std::max<std::int64_t>(out / 3, 1)}, {out - 1, 1}};
  const Linear part = all.part(columns);
  const std::int64_t first = columns[0].count;
  ASSERT_EQ(part.out_features(), first + 1);
  for (const std::int64_t rows : {1, 5, 17}) {
    Tensor x(padded_rows(rows), in), y(padded_rows(rows), out), some(padded_rows(rows), first + 1);
    for (std::int64_t r = 0; r < rows; ++r)
      for (float& value : x.view()[r].span()) value = static_cast<float>(2 * rng.uniform() - 1);
    all.forward(x.view().rows(0, rows), y.view().rows(0, rows));
    part.forward(x.view().rows(0, rows), some.view().rows(0, rows));
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t i = 0; i <= first; ++i) {
        const std::int64_t output = i < first ? columns[0].begin + i : out - 1;
        ASSERT_EQ(some.view()[r][i], y.view()[r][output]) << all.implementation() << ", " << part.implementation();
      }
    }
  }
}

TEST_P(LinearTest, AMappedImageIsUsedInPlaceAndGivesTheSameBits) {
  const auto [in, out] = shape();
  CounterRng rng(static_cast<std::uint64_t>(in * 43 + out));
  const Stored stored(rng, shape(), DType::kF32, 1);
  const Linear packed = Linear::pack(type(), in, stored.refs);
  const PackedWeights image = packed.packed();
  SCOPED_TRACE(testing::Message() << packed.implementation() << ", " << image.layout << ", oneDNN "
                                  << onednn_version());
  const std::vector<float> expected = results_of(packed);

  std::weak_ptr<std::byte> alive;
  {
    const ReadOnly file(image.bytes);
    alive = file.pages();
    const Linear mapped =
        Linear::map({type(), in, out, image.layout, file.bytes(), file.pages(), image.scales}).value();
    EXPECT_EQ(mapped.packed().layout, image.layout);
    EXPECT_EQ(mapped.packed().bytes.data(), file.bytes().data()) << "copied";
    EXPECT_EQ(mapped.weight_bytes(), packed.weight_bytes());
    EXPECT_EQ(mapped.implementation(), packed.implementation());
    EXPECT_EQ(results_of(mapped), expected);
  }
  EXPECT_TRUE(alive.expired()) << "kept longer than its Linear";
  const auto map_and_drop = [&] {
    const ReadOnly file(image.bytes);
    return Linear::map({type(), in, out, image.layout, file.bytes(), file.pages(), image.scales}).value();
  };
  EXPECT_EQ(results_of(map_and_drop()), expected) << "not kept alive";

  const ReadOnly off_by_four(image.bytes, 4);
  EXPECT_EQ(
      results_of(
          Linear::map({type(), in, out, image.layout, off_by_four.bytes(), off_by_four.pages(), image.scales}).value()),
      expected);
}

TEST_P(LinearOfElements, AnImageInAnyLayoutGivesTheBitsOfThisMachines) {
  const auto [in, out] = shape();
  if (shape().size() > 1 << 20) return;  // a layout does not depend on how often it repeats
  CounterRng rng(static_cast<std::uint64_t>(in * 47 + out));
  const Stored stored(rng, shape(), DType::kF32, 1);
  const Linear packed = Linear::pack(type(), in, stored.refs);
  const PackedWeights image = packed.packed();
  const std::vector<float> expected = results_of(packed);

  const std::vector<std::byte> same = relaid(image, type(), shape(), image.layout);
  EXPECT_TRUE(std::equal(same.begin(), same.end(), image.bytes.begin(), image.bytes.end()))
      << "padding is not as " << image.layout << " says";
  // Our own row-major conversion says what the packed bytes must mean, whoever packed them.
  const std::vector<std::byte> rows = relaid(image, type(), shape(), "rows");
  std::vector<std::byte> quantized(static_cast<std::size_t>(in));
  for (std::int64_t o = 0; o < out; ++o) {
    const float* w = stored.values.data() + o * in;
    for (std::int64_t i = 0; i < in; ++i) {
      const std::byte* element = rows.data() + static_cast<std::size_t>(o * in + i) * stored_bytes(type());
      const Bf16 half = to_bf16(w[i]);
      const void* const expected_element = type() == WeightType::kF32 ? static_cast<const void*>(w + i) : &half;
      if (type() == WeightType::kInt8) continue;
      ASSERT_EQ(std::memcmp(element, expected_element, stored_bytes(type())), 0)
          << o << ", " << i << " of " << image.layout;
    }
    if (type() == WeightType::kInt8) {
      kernels().quantize(rotated(w, in).data(), in, reinterpret_cast<std::int8_t*>(quantized.data()));
      ASSERT_TRUE(std::equal(quantized.begin(), quantized.end(), rows.begin() + o * in)) << o << " of " << image.layout;
    }
  }
  for (const char* layout : {"rows", "ab", "BA16a64b", "BA16a64b2a", "BA16a64b4a", "AB8b16a2b", "aB16b", "bA4a",
                             "BA3a5b2a"}) {
    SCOPED_TRACE(layout);
    const std::vector<std::byte> other = relaid(image, type(), shape(), layout);
    const ReadOnly file(other);
    const Linear mapped = Linear::map({type(), in, out, layout, file.bytes(), file.pages(), image.scales}).value();
    EXPECT_EQ(mapped.packed().layout, image.layout);
    EXPECT_EQ(mapped.implementation(), packed.implementation());
    EXPECT_EQ(results_of(mapped), expected);
  }
}

TEST(LinearImages, ThatDoNotFitAreRefused) {
  constexpr Shape kShape{40, 20};
  CounterRng rng(61);
  const Stored stored(rng, kShape, DType::kF32, 1);
  for (const WeightType type : kWeightTypes) {
    SCOPED_TRACE(to_string(type));
    const Linear packed = Linear::pack(type, kShape.in, stored.refs);
    const PackedWeights image = packed.packed();
    const auto refused = [&](const char* wanted, const std::function<void(PackedWeights&)>& change) {
      PackedWeights changed = image;
      change(changed);
      const Result<Linear> mapped = Linear::map(changed);
      ASSERT_FALSE(mapped) << changed.layout.substr(0, 60);
      EXPECT_EQ(mapped.error().code, Errc::kMalformed);
      EXPECT_NE(mapped.error().message.find(wanted), std::string::npos) << mapped.error().message;
    };
    for (const char* layout : {"",
                               "b",
                               "ba",
                               "AB",
                               "Ba",
                               "bb",
                               "Ba16a",
                               "BA16a64b4",
                               "BA16a64b4c",
                               "BA0a64b",
                               "BA1a64b",
                               "BA016a64b",
                               "BA16a64b4a+s8s8",
                               "BA-16a64b",
                               "BA2000a64b",
                               "BA999999999999999999999a64b",
                               "BA512a512a64b",
                               "rows ",
                               "Rows",
                               "any",
                               "BA16 a64b",
                               "int4.g64.v1",
                               "q4.g32.v0",
                               "int4.g32.v1"}) {
      SCOPED_TRACE(layout);
      refused("wanted", [&](PackedWeights& w) { w.layout = layout; });
    }
    refused("wanted", [](PackedWeights& w) { w.layout = std::string(100000, '9'); });
    refused("bytes", [](PackedWeights& w) { w.bytes = w.bytes.first(w.bytes.size() - 1); });
    refused("bytes", [](PackedWeights& w) { w.bytes = {}; });
    refused("bytes", [](PackedWeights& w) { w.in += 64; });
    refused("bytes", [](PackedWeights& w) { w.out += 64; });
    refused("bytes", [](PackedWeights& w) { w.in = w.out = 1 << 30; });
    for (const std::int64_t size : {std::int64_t{0}, std::int64_t{-1}, std::int64_t{1} << 31, std::int64_t{1} << 62}) {
      refused("sizes", [=](PackedWeights& w) { w.in = size; });
      refused("sizes", [=](PackedWeights& w) { w.out = size; });
    }
    refused("scales", [](PackedWeights& w) { w.scales.push_back(1); });
    refused("wanted", [](PackedWeights& w) { w.layout = w.layout == kInt4Layout ? "rows" : kInt4Layout; });
  }
}

// A layout of oneDNN's that no name describes would silently make every matrix slow.
TEST(LinearImplementation, IsTheFastestThatIsExact) {
  CounterRng rng(71);
  constexpr Shape kShape{384, 640};
  const Stored stored(rng, kShape, DType::kF32, 1);
  const auto wanted = [](WeightType type) {
    const bool amx = active_isa() == Isa::kAmx, scalar = active_isa() == Isa::kScalar;
    const bool x86 = isas().back() == Isa::kAmx, vectors_of_bf16 = x86 && !scalar;
    const bool blocks = type == WeightType::kInt4 || type == WeightType::kQ4 ||
                        (type == WeightType::kInt8 && !scalar) || (type == WeightType::kBf16 && vectors_of_bf16);
    const bool others = active_gemm() == Gemm::kOnednn && active_isa() >= Isa::kAvx512 && type < WeightType::kInt8;
    if (blocks && !others) return "own ";
    if (scalar || active_gemm() == Gemm::kOwn || onednn_version() == "none") return "plain ";
    if (active_isa() < Isa::kAvx512) return type == WeightType::kF32 ? "" : "plain ";
    return type == WeightType::kBf16 && !amx ? "" : "onednn brg";  // not every AVX-512 CPU multiplies bfloat16
  };
  for (const WeightType type : kWeightTypes) {
    const Linear linear = Linear::pack(type, kShape.in, stored.refs);
    EXPECT_TRUE(linear.implementation().starts_with(wanted(type)))
        << to_string(type) << ": " << linear.implementation() << ", oneDNN " << onednn_version();
  }
}

TEST(LinearImplementation, OfARouterIsPlain) {
  const WeightRows ones{128, [](std::int64_t, std::span<float> row) { std::ranges::fill(row, 1.0f); }};
  const Linear router = Linear::pack(WeightType::kF32, 2816, {&ones, 1});
  EXPECT_TRUE(router.implementation().starts_with("plain ")) << router.implementation();
}

TEST(LinearGroups, MayHaveMatricesOfSeveralTypesAndPartsOfAWhole) {
  CounterRng rng(23);
  const auto equal_alone = [&](const std::vector<Linear>& matrices) {
    const std::int64_t in = matrices[0].in_features(), out = matrices[0].out_features();
    constexpr std::int64_t kRows = 3;
    const std::int64_t all = kRows * std::ssize(matrices);
    AlignedArray<float> x(static_cast<std::size_t>((all + kGemmHeight) * in)),
        y(static_cast<std::size_t>((all + kGemmHeight) * out));
    std::ranges::copy(random_floats(rng, all * in), x.data());
    std::vector<Linear::Group> groups;
    for (const Linear& matrix : matrices) groups.push_back({&matrix, kRows});
    Linear::forward_groups(groups, {x.data(), {all, in}}, {y.data(), {all, out}});
    for (std::size_t g = 0; g < matrices.size(); ++g) {
      const std::int64_t first = kRows * static_cast<std::int64_t>(g);
      const float* const row = x.data() + first * in;
      const std::vector<float> alone = forward(matrices[g], {row, row + in, row + 2 * in});
      EXPECT_EQ(std::memcmp(y.data() + first * out, alone.data(), alone.size() * sizeof(float)), 0) << "group " << g;
    }
  };
  const auto matrix = [&](WeightType type, Shape shape) {
    return Linear::pack(type, shape.in, Stored(rng, shape, DType::kF32, 1).refs);
  };
  for (const WeightType first : kWeightTypes) {
    std::vector<Linear> matrices = {matrix(first, {384, 640})};
    for (const WeightType type : kWeightTypes) matrices.push_back(matrix(type, {384, 640}));
    equal_alone(matrices);
  }
  // oneDNN multiplies the whole, and not a matrix of its part's shape.
  std::vector<Linear> parts;
  constexpr Columns kPart = {64, 128};
  for (int i = 0; i < 3; ++i) parts.push_back(matrix(WeightType::kF32, {1024, 256}).part({&kPart, 1}));
  equal_alone(parts);
}

TEST(LinearForward, OfNoRowsDoesNothing) {
  CounterRng rng(5);
  const Stored stored(rng, {64, 64}, DType::kF32, 1);
  for (const WeightType type : kWeightTypes) {
    float x = 1, y = 2;
    Linear::pack(type, 64, stored.refs).forward({&x, {0, 64}}, {&y, {0, 64}});
    EXPECT_EQ(y, 2) << to_string(type);
  }
}

TEST(LinearWeightBytes, CountWhatOneForwardReads) {
  CounterRng rng(1);
  const Stored stored(rng, {64, 96}, DType::kF32, 2);
  EXPECT_EQ(Linear::pack(WeightType::kF32, 64, stored.refs).weight_bytes(), 64u * 96 * 4);
  EXPECT_EQ(Linear::pack(WeightType::kBf16, 64, stored.refs).weight_bytes(), 64u * 96 * 2);
  EXPECT_EQ(Linear::pack(WeightType::kInt8, 64, stored.refs).weight_bytes(), 64u * 96);
  // 4 bits and a byte for 32, of whole blocks of outputs.
  EXPECT_EQ(Linear::pack(WeightType::kInt4, 64, stored.refs).weight_bytes(), 64u * 128 * 17 / 32);
  EXPECT_EQ(Linear::pack(WeightType::kQ4, 64, stored.refs).weight_bytes(), 64u * 128 * 18 / 32);
}

}  // namespace
}  // namespace outrider
