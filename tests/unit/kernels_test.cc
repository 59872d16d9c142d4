#include "common/compute/kernels/kernel_table.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "common/base/random.h"
#include "common/compute/kernels/ops.h"
#include "common/compute/kernels/team.h"
#include "common/compute/tensor/decode.h"
#include "common/compute/tensor/f16.h"
#include "common/compute/tensor/tensor.h"

namespace outrider {
namespace {

/// Unit roundoff of float32: half a unit in the last place, relative.
constexpr double kU = 0x1.0p-24;
/// What exp_vector promises (kernels_vector.inc).
constexpr double kExpError = 2e-7;

/// Every tail of 4, 8 and 16 lanes with none, one and many whole vectors before it.
std::vector<std::int64_t> lengths() {
  std::vector<std::int64_t> all;
  for (std::int64_t n = 1; n <= 66; ++n) all.push_back(n);
  for (const std::int64_t n : {100, 127, 128, 255, 257, 511, 512, 1000, 1536, 4099}) all.push_back(n);
  return all;
}

enum class Fill { kUniform, kZeros, kNegativeZeros, kLarge, kTiny, kWide };
constexpr Fill kFills[] = {Fill::kUniform, Fill::kZeros, Fill::kNegativeZeros, Fill::kLarge, Fill::kTiny, Fill::kWide};

std::vector<float> make_row(CounterRng& rng, std::int64_t n, Fill fill = Fill::kUniform) {
  std::vector<float> row(static_cast<std::size_t>(n));
  for (float& x : row) {
    const double r = rng.uniform() * 2 - 1;
    switch (fill) {
      case Fill::kUniform: x = static_cast<float>(r); break;
      case Fill::kZeros: x = 0.0f; break;
      case Fill::kNegativeZeros: x = -0.0f; break;
      case Fill::kLarge: x = static_cast<float>(r * 1e15); break;
      case Fill::kTiny: x = static_cast<float>(r * 1e-20); break;
      case Fill::kWide: x = static_cast<float>(r * std::pow(10.0, rng.uniform() * 20 - 10)); break;
    }
  }
  return row;
}

std::vector<Bf16> rounded(const std::vector<float>& row) {
  std::vector<Bf16> y(row.size());
  for (std::size_t i = 0; i < row.size(); ++i) y[i] = to_bf16(row[i]);
  return y;
}

std::uint32_t bits(float x) { return std::bit_cast<std::uint32_t>(x); }

testing::AssertionResult same_bits(const std::vector<float>& actual, const std::vector<float>& expected) {
  if (actual.size() != expected.size())
    return testing::AssertionFailure() << "sizes " << actual.size() << ", " << expected.size();
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (bits(actual[i]) == bits(expected[i])) continue;
    return testing::AssertionFailure() << "index " << i << " of " << actual.size() << ": " << actual[i] << ", expected "
                                       << expected[i];
  }
  return testing::AssertionSuccess();
}

/// |actual - expected| <= bound, element by element; names the element that is furthest out.
testing::AssertionResult within(const std::vector<float>& actual, const std::vector<double>& expected,
                                const std::vector<double>& bound) {
  std::size_t worst = 0;
  double worst_ratio = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double error = std::fabs(static_cast<double>(actual[i]) - expected[i]);
    const double ratio = error == 0          ? 0
                         : error <= bound[i] ? error / bound[i]
                         : std::isnan(error) ? 1e300
                                             : 1 + error / (bound[i] + 1e-300);
    if (ratio > worst_ratio) worst = i, worst_ratio = ratio;
  }
  if (worst_ratio <= 1) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "index " << worst << " of " << actual.size() << ": " << actual[worst]
                                     << ", expected " << expected[worst] << " within " << bound[worst];
}

class Kernels : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!has_isa(GetParam())) GTEST_SKIP() << "this CPU has no " << to_string(GetParam());
    table_ = &kernel_table(GetParam());
  }
  const KernelTable& fast() const { return *table_; }
  const KernelTable& plain() const { return kScalarKernels; }

 private:
  const KernelTable* table_ = nullptr;
};

INSTANTIATE_TEST_SUITE_P(EachIsa, Kernels, testing::ValuesIn(isas().begin(), isas().end()),
                         [](const auto& param_info) { return std::string(to_string(param_info.param)); });

// ---- bit for bit equal to the plain ones ----

TEST_P(Kernels, AddScaleAndDequantizeEqualThePlainOnes) {
  for (const std::int64_t n : lengths()) {
    for (const Fill fill : kFills) {
      SCOPED_TRACE(testing::Message() << "n " << n << ", fill " << static_cast<int>(fill));
      CounterRng rng(static_cast<std::uint64_t>(n));
      const std::vector<float> x = make_row(rng, n, fill), y = make_row(rng, n);

      std::vector<float> sum = x, plain_sum = x;
      fast().add(sum.data(), y.data(), n);
      plain().add(plain_sum.data(), y.data(), n);
      EXPECT_TRUE(same_bits(sum, plain_sum));

      std::vector<float> scaled = x, plain_scaled = x;
      fast().scale(scaled.data(), -1.7f, n);
      plain().scale(plain_scaled.data(), -1.7f, n);
      EXPECT_TRUE(same_bits(scaled, plain_scaled));

      std::vector<std::int32_t> sums(x.size());
      for (std::int32_t& s : sums) s = static_cast<std::int32_t>(rng.next());
      std::vector<float> real(x.size()), plain_real(x.size());
      fast().dequantize(sums.data(), 0.0123f, y.data(), n, real.data());
      plain().dequantize(sums.data(), 0.0123f, y.data(), n, plain_real.data());
      EXPECT_TRUE(same_bits(real, plain_real));
    }
  }
}

TEST_P(Kernels, ToBf16RoundsToNearestEvenAndKeepsNan) {
  // Every upper half with lower halves at, just below and just above the tie, at every lane.
  const std::uint32_t lower[] = {0x0000, 0x0001, 0x7fff, 0x8000, 0x8001, 0xffff};
  std::vector<float> x;
  for (std::uint32_t upper = 0; upper < 0x10000; ++upper) {
    for (const std::uint32_t low : lower) x.push_back(std::bit_cast<float>(upper << 16 | low));
  }
  x.push_back(std::numeric_limits<float>::quiet_NaN());  // a tail
  const auto n = static_cast<std::int64_t>(x.size());
  std::vector<Bf16> y(x.size());
  fast().to_bf16(x.data(), n, y.data());
  for (std::size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(y[i].bits, to_bf16(x[i]).bits) << "index " << i << ", input bits " << std::hex << bits(x[i]);
    ASSERT_EQ(std::isnan(x[i]), std::isnan(to_float(y[i]))) << "index " << i;
  }
  for (const std::int64_t length : lengths()) {
    std::vector<Bf16> part(static_cast<std::size_t>(length) + 1, Bf16{0xabcd});
    const float* from = x.data() + 0x7f80 * 6 - length / 2;  // around infinity and NaN
    fast().to_bf16(from, length, part.data());
    for (std::int64_t i = 0; i < length; ++i)
      ASSERT_EQ(part[static_cast<std::size_t>(i)].bits, to_bf16(from[i]).bits) << length << ", " << i;
    EXPECT_EQ(part.back().bits, 0xabcd) << "wrote past " << length;
  }
}

TEST_P(Kernels, ArgmaxIsTheLowestIndexOfTheLargest) {
  CounterRng rng(3);
  for (const std::int64_t n : lengths()) {
    SCOPED_TRACE(testing::Message() << "n " << n);
    std::vector<float> x = make_row(rng, n);
    EXPECT_EQ(fast().argmax(x.data(), n), plain().argmax(x.data(), n));
    for (int repeat = 0; repeat < 20; ++repeat) {
      // Few values: ties at any distance, across lanes and the tail.
      for (float& v : x) v = static_cast<float>(rng.below(3)) - 1.0f;
      ASSERT_EQ(fast().argmax(x.data(), n), std::max_element(x.begin(), x.end()) - x.begin());
    }
    for (std::int64_t at = 0; at < n; ++at) {
      std::vector<float> one(static_cast<std::size_t>(n), -std::numeric_limits<float>::infinity());
      ASSERT_EQ(fast().argmax(one.data(), n), 0);
      one[static_cast<std::size_t>(at)] = -1e30f;
      ASSERT_EQ(fast().argmax(one.data(), n), at);
    }
    std::fill(x.begin(), x.end(), 0.0f);
    x[0] = -0.0f;  // equal to +0
    EXPECT_EQ(fast().argmax(x.data(), n), 0);
  }
}

TEST_P(Kernels, QuantizeIsThePlainOneAndWithinHalfAStep) {
  CounterRng rng(4);
  for (const std::int64_t n : lengths()) {
    for (const Fill fill : kFills) {
      SCOPED_TRACE(testing::Message() << "n " << n << ", fill " << static_cast<int>(fill));
      const std::vector<float> x = make_row(rng, n, fill);
      std::vector<std::int8_t> y(x.size() + 1, 99), plain_y(x.size() + 1, 99);
      const float scale = fast().quantize(x.data(), n, y.data());
      const float plain_scale = plain().quantize(x.data(), n, plain_y.data());
      ASSERT_EQ(bits(scale), bits(plain_scale));
      EXPECT_EQ(y.back(), 99) << "wrote past the end";
      for (std::size_t i = 0; i < x.size(); ++i) {
        ASSERT_EQ(y[i], plain_y[i]) << "index " << i << ", x " << x[i] << ", scale " << scale;
        ASSERT_GE(y[i], -127);
        // Half a step, and the rounding of 127 / max, x * that and max / 127: 3 u of up to 127 steps.
        ASSERT_LE(std::fabs(static_cast<double>(x[i]) - static_cast<double>(y[i]) * scale),
                  scale * (0.5 + 127 * 4 * kU))
            << "index " << i;
      }
      if (fill == Fill::kZeros || fill == Fill::kNegativeZeros) {
        EXPECT_EQ(scale, 0.0f);
      }
    }
  }
}

TEST_P(Kernels, QuantizeHidesNoNumberThatIsNotFinite) {
  CounterRng rng(7);
  for (const std::int64_t n : lengths()) {
    for (const std::int64_t at : {std::int64_t{0}, n / 2, n - 1}) {
      for (const float bad : {NAN, -NAN, INFINITY, -INFINITY}) {
        std::vector<float> x = make_row(rng, n);
        x[static_cast<std::size_t>(at)] = bad;
        std::vector<std::int8_t> y(x.size());
        EXPECT_FALSE(std::isfinite(fast().quantize(x.data(), n, y.data()))) << bad << " at " << at << " of " << n;
        EXPECT_FALSE(std::isfinite(plain().quantize(x.data(), n, y.data()))) << bad << " at " << at << " of " << n;
      }
    }
  }
}

TEST_P(Kernels, RotateIsThePlainOneAnOrthogonalMatrixAndItsOwnInverse) {
  CounterRng rng(6);
  std::vector<std::int64_t> sizes = lengths();
  sizes.insert(sizes.end(), {2, 4, 8, 16, 32, 64, 96, 256, 704, 1536, 2112, 2560});
  for (const std::int64_t n : sizes) {
    SCOPED_TRACE(n);
    const std::vector<float> x = make_row(rng, n), y = make_row(rng, n);
    std::vector<float> rotated_x = x, plain_x = x, rotated_y = y;
    fast().rotate(rotated_x.data(), n);
    plain().rotate(plain_x.data(), n);
    fast().rotate(rotated_y.data(), n);
    EXPECT_TRUE(same_bits(rotated_x, plain_x));
    double product = 0, rotated_product = 0, x_squares = 0, y_squares = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      product += static_cast<double>(x[i]) * y[i], rotated_product += static_cast<double>(rotated_x[i]) * rotated_y[i];
      x_squares += static_cast<double>(x[i]) * x[i], y_squares += static_cast<double>(y[i]) * y[i];
    }
    EXPECT_NEAR(rotated_product, product, 32 * kU * std::sqrt(x_squares * y_squares));
    fast().rotate(rotated_x.data(), n);
    EXPECT_TRUE(within(rotated_x, {x.begin(), x.end()}, std::vector<double>(x.size(), 32 * kU * std::sqrt(x_squares))));
  }
  // One large number becomes 64 small ones.
  std::vector<float> x(2560, 0.0f);
  x[77] = 80;
  fast().rotate(x.data(), std::ssize(x));
  EXPECT_EQ(std::ranges::count(x, 0.0f), 2560 - 64);
  EXPECT_EQ(std::ranges::count_if(x, [](float v) { return std::fabs(v) == 10; }), 64);
}

// Products that lie within float32 rounding of a tie: an implementation that fuses x * inverse + shift
// would round some of them the other way.
TEST_P(Kernels, QuantizeBreaksTiesLikeThePlainOne) {
  CounterRng rng(5);
  for (int repeat = 0; repeat < 200; ++repeat) {
    std::vector<float> x = make_row(rng, 1021);
    x[0] = static_cast<float>(1 + rng.uniform());
    const float step = x[0] / 127.0f;
    for (std::size_t i = 1; i < x.size(); ++i) {
      x[i] = (static_cast<float>(rng.below(253)) - 126.5f) * step;
      const auto ulps = static_cast<int>(rng.below(5)) - 2;
      for (int u = 0; u < std::abs(ulps); ++u) x[i] = std::nextafter(x[i], ulps < 0 ? -1e9f : 1e9f);
    }
    std::vector<std::int8_t> y(x.size()), plain_y(x.size());
    fast().quantize(x.data(), static_cast<std::int64_t>(x.size()), y.data());
    plain().quantize(x.data(), static_cast<std::int64_t>(x.size()), plain_y.data());
    for (std::size_t i = 0; i < x.size(); ++i) {
      ASSERT_EQ(y[i], plain_y[i]) << "repeat " << repeat << ", index " << i << ", x " << x[i] << ", max " << x[0];
    }
  }
}

TEST_P(Kernels, DotOfQ8BlocksIsThatOfTheDecodedRow) {
  for (const std::int64_t n : {32, 64, 96, 256, 1024}) {
    for (const Fill fill : kFills) {
      SCOPED_TRACE(testing::Message() << "n " << n << ", fill " << static_cast<int>(fill));
      CounterRng rng(static_cast<std::uint64_t>(n) + 300);
      const std::vector<float> x = make_row(rng, n, fill);
      std::vector<std::byte> blocks(stored_bytes(DType::kQ8_0, x.size()) + 1);  // off any alignment
      encode_q8_0(make_row(rng, n), blocks.data() + 1);
      std::vector<float> w(x.size());
      decode(DType::kQ8_0, blocks.data() + 1, w);
      double sum = 0, size = 0;
      for (std::size_t i = 0; i < x.size(); ++i) {
        const double product = static_cast<double>(x[i]) * w[i];
        sum += product, size += std::fabs(product);
      }
      // As for the other dots, and a rounding by the scale.
      EXPECT_TRUE(within({fast().dot_q8_0(x.data(), blocks.data() + 1, n)}, {sum},
                         {static_cast<double>(n + 3) * kU * size + static_cast<double>(n) * 0x1.0p-142}));
    }
  }
}

/// A byte that keeps every nibble's weight an int8, as packing does.
std::uint8_t random_group(CounterRng& rng) {
  for (;;) {
    const auto byte = static_cast<int>(rng.below(256));
    const int zero = int4_zero(byte);
    if (zero <= 128 && 15 * int4_multiplier(byte) - zero <= 127) return static_cast<std::uint8_t>(byte);
  }
}

/// Inputs and weights of gemm_int4, and room for its results with guards on either side of every row.
struct Int4Case {
  Int4Case(CounterRng& rng, std::int64_t some_rows, std::int64_t some_outputs, std::int64_t some_steps)
      : rows(some_rows), outputs(some_outputs), steps(some_steps) {
    weights = AlignedArray<Int4Chunk>(static_cast<std::size_t>(2 * steps));
    for (Int4Chunk& chunk : weights.span()) {
      for (auto& half : chunk.nibbles) {
        for (auto& group : half) {
          for (auto& line : group) {
            for (std::uint8_t& byte : line) byte = static_cast<std::uint8_t>(rng.next());
          }
        }
      }
      for (auto& half : chunk.group) {
        for (auto& group : half) {
          for (std::uint8_t& byte : group) byte = random_group(rng);
        }
      }
    }
    x.resize(static_cast<std::size_t>(rows * steps * kStepBytes));
    for (std::int8_t& value : x) value = static_cast<std::int8_t>(rng.below(255) - 127);
    for (std::int64_t r = 0; r < rows; ++r) row_scale.push_back(static_cast<float>(rng.uniform()));
    for (std::int64_t o = 0; o < outputs; ++o) column_scale.push_back(static_cast<float>(rng.uniform()));
  }

  std::vector<float> run(void (*gemm)(const GemmArgs&), bool tiles) const {
    std::vector<std::int16_t> sums(x.size() / 32);
    for (std::size_t i = 0; i < x.size(); ++i) sums[i / 32] = static_cast<std::int16_t>(sums[i / 32] + x[i]);
    const std::int64_t row_bytes = steps * kStepBytes, padded = (rows + 31) / 32 * 32;
    AlignedArray<std::int8_t> input(static_cast<std::size_t>(padded * row_bytes));
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t i = 0; i < row_bytes; ++i) {
        const std::int64_t in_tile = r / 16 * 16 * row_bytes + i / 64 * 16 * 64 + r % 16 * 64 + i % 64;
        input[static_cast<std::size_t>(tiles ? in_tile : r * row_bytes + i)] =
            x[static_cast<std::size_t>(r * row_bytes + i)];
      }
    }
    AlignedArray<std::byte> expanded(static_cast<std::size_t>(row_bytes * kBlockOutputs));
    const std::int64_t stride = outputs + 3;
    std::vector<float> y(static_cast<std::size_t>(rows * stride), -77.0f);
    gemm({.weights = reinterpret_cast<const std::byte*>(weights.data()),
          .steps = steps,
          .x = reinterpret_cast<const std::byte*>(input.data()),
          .sums = sums.data(),
          .expanded = expanded.data(),
          .rows = rows,
          .outputs = outputs,
          .row_scale = row_scale.data(),
          .column_scale = column_scale.data(),
          .y = y.data(),
          .y_stride = stride});
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t o = outputs; o < stride; ++o)
        EXPECT_EQ(y[static_cast<std::size_t>(r * stride + o)], -77.0f) << "wrote past row " << r;
    }
    return y;
  }

  /// Whether every kernel of the instruction set gives `expected`.
  testing::AssertionResult gives(const std::vector<float>& expected, Isa isa) const {
    const KernelTable& table = kernel_table(isa);
    const testing::AssertionResult vectors = same_bits(run(table.gemm_int4, false), expected);
    return vectors && table.gemm_int4_tiles ? same_bits(run(table.gemm_int4_tiles, true), expected) : vectors;
  }

  std::int64_t rows, outputs, steps;
  AlignedArray<Int4Chunk> weights;
  std::vector<std::int8_t> x;
  std::vector<float> row_scale, column_scale;
};

TEST_P(Kernels, GemmInt4EqualsThePlainOne) {
  CounterRng rng(10);
  for (const std::int64_t steps : {1, 2, 3, 40}) {
    for (std::int64_t rows = 1; rows <= 110; rows += rows < 35 ? 1 : 15) {
      for (const std::int64_t outputs : {1, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 63, 64}) {
        SCOPED_TRACE(testing::Message() << steps << " steps, " << rows << " rows, " << outputs << " outputs");
        if ((steps == 40 || rows > 35) && (rows % 5 != 0 || outputs % 8 != 1)) continue;
        const Int4Case some(rng, rows, outputs, steps);
        ASSERT_TRUE(some.gives(some.run(plain().gemm_int4, false), GetParam()));
      }
    }
  }
}

/// All that the registers hold at once, and more than those whose totals the L1 cache holds.
constexpr std::int64_t kElementRows[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 25, 51, 101};

TEST_P(Kernels, GemmInt8IsExact) {
  const auto gemm = fast().gemm_int8;
  if (gemm == nullptr) GTEST_SKIP() << "multiplied row by row";
  CounterRng rng(14);
  for (const std::int64_t steps : {1, 3, 9}) {
    for (const std::int64_t rows : kElementRows) {
      for (const std::int64_t outputs : {1, 8, 15, 33, 64}) {
        const auto bytes = static_cast<std::size_t>(steps * kStepBytes), count = static_cast<std::size_t>(rows);
        AlignedArray<std::int8_t> weights(bytes * kBlockOutputs), x(bytes * count);
        // Any byte may be a file's; ends of the range are frequent.
        for (std::int8_t& w : weights.span()) w = static_cast<std::int8_t>(rng.below(3) == 0 ? 128 : rng.below(256));
        for (std::int8_t& v : x.span()) v = static_cast<std::int8_t>(rng.below(3) == 0 ? 127 : rng.below(255) - 127);
        std::vector<std::int16_t> sums(bytes * count / 32);
        for (std::size_t i = 0; i < x.size(); ++i) sums[i / 32] = static_cast<std::int16_t>(sums[i / 32] + x[i]);
        const std::vector<float> scales(128, 1.0f);  // of rows and of outputs
        const auto width = static_cast<std::size_t>(outputs) + 3;
        std::vector<float> y(count * width, -77.0f), expected = y;
        gemm({.weights = reinterpret_cast<const std::byte*>(weights.data()),
              .steps = steps,
              .x = reinterpret_cast<const std::byte*>(x.data()),
              .sums = sums.data(),
              .expanded = nullptr,
              .rows = rows,
              .outputs = outputs,
              .row_scale = scales.data(),
              .column_scale = scales.data(),
              .y = y.data(),
              .y_stride = outputs + 3});
        for (std::size_t r = 0; r < count; ++r) {
          for (std::size_t o = 0; o + 3 < width; ++o) {
            std::int32_t sum = 0;
            for (std::size_t i = 0; i < bytes; ++i) sum += x[r * bytes + i] * weights[i / 4 * 256 + o * 4 + i % 4];
            expected[r * width + o] = static_cast<float>(sum);
          }
        }
        ASSERT_TRUE(same_bits(y, expected)) << steps << " steps, " << rows << " rows, " << outputs << " outputs";
      }
    }
  }
}

// The same bits on every instruction set that has the kernel, and so in every batch.
TEST_P(Kernels, GemmBf16IsAChainOfFmaInTheOrderOfTheInputs) {
  const auto gemm = fast().gemm_bf16;
  if (gemm == nullptr) GTEST_SKIP() << "multiplied row by row";
  CounterRng rng(15);
  for (const std::int64_t steps : {1, 3, 9}) {
    for (const std::int64_t rows : kElementRows) {
      for (const std::int64_t outputs : {1, 8, 15, 33, 64}) {
        const auto inputs = static_cast<std::size_t>(steps * kStepBytes / 2), count = static_cast<std::size_t>(rows);
        AlignedArray<Bf16> weights(inputs * kBlockOutputs);
        AlignedArray<float> x(inputs * count);
        for (Bf16& w : weights.span()) w = to_bf16(static_cast<float>(rng.uniform() * 2 - 1));
        for (float& v : x.span()) v = to_float(to_bf16(static_cast<float>(rng.uniform() * 2 - 1)));
        const auto width = static_cast<std::size_t>(outputs) + 3;
        std::vector<float> y(count * width, -77.0f), expected = y;
        gemm({.weights = reinterpret_cast<const std::byte*>(weights.data()),
              .steps = steps,
              .x = reinterpret_cast<const std::byte*>(x.data()),
              .sums = nullptr,
              .expanded = nullptr,
              .rows = rows,
              .outputs = outputs,
              .row_scale = nullptr,
              .column_scale = nullptr,
              .y = y.data(),
              .y_stride = outputs + 3});
        for (std::size_t r = 0; r < count; ++r) {
          for (std::size_t o = 0; o + 3 < width; ++o) {
            float sum = 0;
            for (std::size_t i = 0; i < inputs; ++i)
              sum = std::fma(to_float(weights[i / 2 * 128 + o * 2 + i % 2]), x[r * inputs + i], sum);
            expected[r * width + o] = sum;
          }
        }
        ASSERT_TRUE(same_bits(y, expected)) << steps << " steps, " << rows << " rows, " << outputs << " outputs";
      }
    }
  }
}

// The largest products, of either sign: 16 bits hold them only if pairs are added up with care.
TEST_P(Kernels, GemmInt4IsExactAtTheEndsOfTheRange) {
  CounterRng rng(11);
  for (const int group : {0x00, 0x01, 0xf1, 0x9f, 0x5f, 0xfd, 0x0d}) {
    for (const int nibble : {0, 15}) {
      for (const int value : {-127, 127}) {
        Int4Case some(rng, 17, 64, 2);
        for (Int4Chunk& chunk : some.weights.span()) {
          std::fill_n(&chunk.nibbles[0][0][0][0], sizeof(chunk.nibbles), static_cast<std::uint8_t>(nibble * 17));
          std::fill_n(&chunk.group[0][0][0], sizeof(chunk.group), static_cast<std::uint8_t>(group));
        }
        std::fill(some.x.begin(), some.x.end(), static_cast<std::int8_t>(value));
        std::fill(some.row_scale.begin(), some.row_scale.end(), 1.0f);
        std::fill(some.column_scale.begin(), some.column_scale.end(), 1.0f);
        std::vector<float> expected(17 * 67, -77.0f);
        for (std::size_t i = 0; i < expected.size(); ++i) {
          if (i % 67 < 64)
            expected[i] = static_cast<float>(2 * 64 * value * (nibble * int4_multiplier(group) - int4_zero(group)));
        }
        ASSERT_TRUE(some.gives(expected, GetParam())) << "group " << group << ", nibble " << nibble << ", " << value;
      }
    }
  }
}

// Rows may be at the ends of the range, or not finite.
TEST_P(Kernels, GemmQ4EqualsThePlainOne) {
  CounterRng rng(12);
  const KernelTable& table = kernel_table(GetParam());
  for (const std::int64_t steps : {1, 3, 20}) {
    for (const std::int64_t rows : {1, 2, 3, 5, 8, 9, 16, 17, 33, 70}) {
      for (const std::int64_t outputs : {1, 8, 17, 33, 63, 64}) {
        SCOPED_TRACE(testing::Message() << steps << " steps, " << rows << " rows, " << outputs << " outputs");
        AlignedArray<Q4Chunk> weights(static_cast<std::size_t>(2 * steps));
        for (Q4Chunk& chunk : weights.span()) {
          for (auto& half : chunk.nibbles)
            for (auto& group : half)
              for (auto& line : group)
                for (std::uint8_t& byte : line) byte = rng.below(9) == 0 ? 0xff : static_cast<std::uint8_t>(rng.next());
          for (auto& half : chunk.scale)
            for (auto& group : half)
              for (std::uint16_t& scale : group) scale = to_f16(static_cast<float>(rng.uniform() - 0.5)).bits;
        }
        const std::int64_t in = steps * 64 - static_cast<std::int64_t>(rng.below(64));
        std::vector<Q4Input> x(static_cast<std::size_t>(rows * 2 * steps));
        for (std::int64_t r = 0; r < rows; ++r) {
          std::vector<float> row(static_cast<std::size_t>(in));
          for (float& value : row) value = static_cast<float>(rng.uniform() * 2 - 1);
          if (r % 5 == 1) std::fill(row.begin(), row.end(), r % 2 == 0 ? 3.0f : -3.0f);
          if (r % 11 == 10) row[rng.below(row.size())] = INFINITY;
          round_q4_inputs(row, 2 * steps, x.data() + r * 2 * steps);
        }
        std::vector<float> column_scale(64, 1);
        for (float& scale : column_scale) scale = std::ldexp(1.0f, static_cast<int>(rng.below(8)) - 4);
        const std::int64_t stride = outputs + 3;
        const auto run = [&](void (*gemm)(const GemmArgs&)) {
          std::vector<float> y(static_cast<std::size_t>(rows * stride), -77.0f);
          gemm({.weights = reinterpret_cast<const std::byte*>(weights.data()),
                .steps = steps,
                .x = reinterpret_cast<const std::byte*>(x.data()),
                .sums = nullptr,
                .expanded = nullptr,
                .rows = rows,
                .outputs = outputs,
                .row_scale = nullptr,
                .column_scale = column_scale.data(),
                .y = y.data(),
                .y_stride = stride});
          for (float& value : y)
            if (std::isnan(value)) value = NAN;  // of one sign
          return y;
        };
        const std::vector<float> expected = run(plain().gemm_q4);
        ASSERT_TRUE(same_bits(run(table.gemm_q4), expected));
        if (table.gemm_q4_tiles != nullptr) {
          ASSERT_TRUE(same_bits(run(table.gemm_q4_tiles), expected));
        }
      }
    }
  }
}

// ---- packing int4 ----

/// One output's weights, packed and taken apart again.
struct PackedRow {
  PackedRow(const std::vector<float>& row, std::int64_t output)
      : chunks((row.size() + 63) / 64 * 2), scale(pack_int4_row(row, output, chunks.data())) {
    for (std::size_t i = 0; i < chunks.size() / 2 * 64; ++i) {
      const Int4Chunk& chunk = chunks[i / 64 * 2 + static_cast<std::size_t>(output / 32)];
      const auto half = output / 16 % 2, lane = output % 16;
      const int group = chunk.group[half][i / 32 % 2][lane];
      const int pair = chunk.nibbles[half][i / 32 % 2][i % 16 / 4][static_cast<std::size_t>(4 * lane) + i % 4];
      integers.push_back((i / 16 % 2 == 0 ? pair & 15 : pair >> 4) * int4_multiplier(group) - int4_zero(group));
    }
  }
  double weight(std::size_t i) const { return integers[i] * static_cast<double>(scale); }

  std::vector<Int4Chunk> chunks;
  float scale;
  std::vector<int> integers;
};

/// Root mean square error over root mean square, of random rows.
double packing_error(CounterRng& rng, double (*draw)(CounterRng&)) {
  double error = 0, size = 0;
  for (std::int64_t output = 0; output < 24; ++output) {
    std::vector<float> row(1024);
    for (float& x : row) x = static_cast<float>(draw(rng));
    const PackedRow packed(row, output % 64);
    for (std::size_t i = 0; i < row.size(); ++i) {
      error += std::pow(row[i] - packed.weight(i), 2);
      size += std::pow(row[i], 2);
    }
  }
  return std::sqrt(error / size);
}

double draw_normal(CounterRng& rng) {
  return std::sqrt(-2 * std::log(1 - rng.uniform())) * std::cos(2 * M_PI * rng.uniform());
}

// What docs/numerics.md says, and room for the seed. 16 equal steps to a normal group's extreme lose 8.6 %.
TEST(Int4, LosesWhatThePagesSay) {
  CounterRng rng(12);
  EXPECT_LE(packing_error(rng, draw_normal), 0.0745);
  EXPECT_LE(packing_error(rng, [](CounterRng& r) { return r.uniform() * 2 - 1; }), 0.062);
}

TEST(Int4, WeightsStayWithinAnInt8AndWithinTheirGroupsRange) {
  CounterRng rng(13);
  for (int repeat = 0; repeat < 300; ++repeat) {
    std::vector<float> row = make_row(rng, 1 + static_cast<std::int64_t>(rng.below(300)));
    for (float& x : row) x *= repeat % 3 == 0 ? 1 : x * x * x;  // many small, few large
    const PackedRow packed(row, repeat % 64);
    float largest = 0;
    for (const float x : row) largest = std::max(largest, std::fabs(x));
    for (std::size_t i = 0; i < packed.integers.size(); ++i) {
      ASSERT_TRUE(-128 <= packed.integers[i] && packed.integers[i] <= 127) << packed.integers[i];
      ASSERT_LE(std::fabs(packed.weight(i)), 1.5 * largest);
    }
  }
}

TEST(Int4, OddWeightsAreOnlyRounded) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const float odd :
       {0.0f, -0.0f, 1e-40f, 1e-30f, 1e-7f, 1e30f, kInf, -kInf, std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> row(40, 0.5f);
    row[3] = odd;
    row[39] = odd;
    for (int all = 0; all < 2; ++all) {
      const PackedRow packed(row, 15);
      for (std::size_t i = 0; i < 64; ++i) ASSERT_TRUE(std::isfinite(packed.weight(i))) << odd << ", " << i;
      std::fill(row.begin(), row.end(), odd);
    }
  }
}

TEST(Int4, ARowOfZerosIsZero) {
  const PackedRow packed(std::vector<float>(100, 0.0f), 40);
  for (const int weight : packed.integers) ASSERT_EQ(weight, 0);
}

// ---- against double precision ----

TEST_P(Kernels, RmsNormIsWithinItsRoundings) {
  for (const std::int64_t n : lengths()) {
    for (const Fill fill : kFills) {
      for (const bool weighted : {false, true}) {
        SCOPED_TRACE(testing::Message() << "n " << n << ", fill " << static_cast<int>(fill) << ", weighted "
                                        << weighted);
        CounterRng rng(static_cast<std::uint64_t>(n) + 100);
        const std::vector<float> x = make_row(rng, n, fill), weight = make_row(rng, n);
        constexpr float kEps = 1e-6f;
        double squares = 0;
        for (const float v : x) squares += static_cast<double>(v) * v;
        const double factor = 1 / std::sqrt(squares / static_cast<double>(n) + kEps);
        std::vector<double> expected(x.size()), bound(x.size());
        for (std::size_t i = 0; i < x.size(); ++i) {
          expected[i] = x[i] * factor * (weighted ? weight[i] : 1.0f);
          // The sum has positive terms: n roundings, halved by the root; then /n, +eps, root, 1/, two products.
          bound[i] = std::fabs(expected[i]) * (static_cast<double>(n) / 2 + 6) * kU + 1e-44;
        }
        std::vector<float> y(x.size());
        fast().rms_norm(x.data(), weighted ? weight.data() : nullptr, kEps, n, y.data());
        EXPECT_TRUE(within(y, expected, bound));
        std::vector<float> in_place = x;
        fast().rms_norm(in_place.data(), weighted ? weight.data() : nullptr, kEps, n, in_place.data());
        EXPECT_TRUE(same_bits(in_place, y));
      }
    }
  }
}

TEST_P(Kernels, DotsAreWithinTheirRoundings) {
  for (const std::int64_t n : lengths()) {
    for (const Fill fill : kFills) {
      SCOPED_TRACE(testing::Message() << "n " << n << ", fill " << static_cast<int>(fill));
      CounterRng rng(static_cast<std::uint64_t>(n) + 200);
      const std::vector<float> x = make_row(rng, n, fill), w = make_row(rng, n);
      const std::vector<Bf16> x16 = rounded(x), w16 = rounded(w);
      double sum = 0, size = 0, sum16 = 0, size16 = 0;
      for (std::size_t i = 0; i < x.size(); ++i) {
        const double product = static_cast<double>(x[i]) * w[i],
                     product16 = static_cast<double>(to_float(x16[i])) * to_float(w16[i]);
        sum += product, size += std::fabs(product), sum16 += product16, size16 += std::fabs(product16);
      }
      // n sums and a product each, in any order (Higham 2002, 3.1); the second term is for denormals.
      const double relative = static_cast<double>(n + 1) * kU, absolute = static_cast<double>(n) * 0x1.0p-149;
      EXPECT_TRUE(within({fast().dot_f32(x.data(), w.data(), n)}, {sum}, {relative * size + absolute}));
      EXPECT_TRUE(within({fast().dot_bf16(x16.data(), w16.data(), n)}, {sum16}, {relative * size16 + absolute}));
    }
  }
}

TEST_P(Kernels, RopeRotatesWithinItsRoundings) {
  CounterRng rng(7);
  for (std::int64_t pairs = 1; pairs <= 70; ++pairs) {
    SCOPED_TRACE(testing::Message() << "pairs " << pairs);
    const std::vector<float> x = make_row(rng, 2 * pairs), c = make_row(rng, pairs), s = make_row(rng, pairs);
    std::vector<double> expected(x.size()), bound(x.size());
    for (std::size_t i = 0; i < c.size(); ++i) {
      const double a = x[i], b = x[i + c.size()];
      expected[i] = a * c[i] - b * s[i];
      expected[i + c.size()] = b * c[i] + a * s[i];
      bound[i] = 2 * kU * (std::fabs(a * c[i]) + std::fabs(b * s[i])) + 1e-44;  // a product and a sum each
      bound[i + c.size()] = 2 * kU * (std::fabs(b * c[i]) + std::fabs(a * s[i])) + 1e-44;
    }
    std::vector<float> y = x;
    fast().rope(y.data(), c.data(), s.data(), pairs);
    EXPECT_TRUE(within(y, expected, bound));
  }
}

/// -1e30 .. 1e30 by orders of magnitude, and 0.01 apart from -100 to 100.
std::vector<float> wide_range() {
  std::vector<float> x;
  for (double v = 1e-30; v < 1e30; v *= 1.7) x.insert(x.end(), {static_cast<float>(v), static_cast<float>(-v)});
  for (int i = -10000; i <= 10000; ++i) x.push_back(static_cast<float>(i) * 0.01f);
  return x;
}

/// Of 1 - 2 / (exp(2t) + 1): half of exp's error, the argument's |t| sech^2 t <= 1/2 per rounding, and
/// exp + 1, the quotient (at most 2) and the difference: 2 + 2 + 1 roundings.
double tanh_error(int argument_roundings) { return kExpError / 2 + (5 + 0.5 * argument_roundings) * kU; }

TEST_P(Kernels, SoftcapIsTanhOverAWideRange) {
  for (const float cap : {30.0f, 50.0f, 1.0f}) {
    const std::vector<float> x = wide_range();
    std::vector<double> expected, bound(x.size(), cap * (tanh_error(1) + kU));
    for (const float v : x) expected.push_back(cap * std::tanh(static_cast<double>(v) / cap));
    std::vector<float> y = x;
    fast().softcap(y.data(), cap, static_cast<std::int64_t>(y.size()));
    EXPECT_TRUE(within(y, expected, bound)) << "cap " << cap;
    for (const std::int64_t n : lengths()) {
      // An element's value depends neither on the row's length nor on the lane it is in.
      std::vector<float> part(x.begin() + 5, x.begin() + 5 + n);
      fast().softcap(part.data(), cap, n);
      EXPECT_TRUE(same_bits(part, {y.begin() + 5, y.begin() + 5 + n})) << "n " << n;
    }
  }
}

TEST_P(Kernels, SoftmaxWeightsAreExponentialsAndZeroForWhatIsMasked) {
  for (const float temperature : {1.0f, 0.3f, 1.5f}) {
    std::vector<float> x = wide_range();
    std::erase_if(x, [](float v) { return v > 100; });
    x[3] = -std::numeric_limits<float>::infinity();
    const float highest = 100;
    std::vector<double> expected, bound;
    for (const float v : x) {
      const float power = (v - highest) / temperature;  // a float in every version: exp magnifies its rounding
      expected.push_back(power < -87 ? 0 : std::exp(static_cast<double>(power)));
      bound.push_back(kExpError * expected.back());
    }
    std::vector<float> y(x.size());
    fast().softmax_weights(x.data(), highest, temperature, std::ssize(x), y.data());
    EXPECT_TRUE(within(y, expected, bound)) << "temperature " << temperature;
    for (const std::int64_t n : lengths()) {
      std::vector<float> part(static_cast<std::size_t>(n));
      fast().softmax_weights(x.data() + 5, highest, temperature, n, part.data());
      EXPECT_TRUE(same_bits(part, {y.begin() + 5, y.begin() + 5 + n})) << "n " << n;
    }
  }
}

TEST_P(Kernels, GeluIsWithinItsRoundingsOverAWideRange) {
  const std::vector<float> gate = wide_range();
  CounterRng rng(8);
  const std::vector<float> up = make_row(rng, static_cast<std::int64_t>(gate.size()));
  std::vector<double> expected, bound;
  for (std::size_t i = 0; i < gate.size(); ++i) {
    const double z = gate[i], u = up[i];
    const double value = 0.5 * z * (1 + std::tanh(0.7978845608028654 * (z + 0.044715 * z * z * z))) * u;
    expected.push_back(value);
    // tanh's argument: 2 products for z^3, 2 constants, a product and a sum, the factor: 7 roundings. Then
    // tanh + 1 (at most 2) and 3 products.
    bound.push_back(std::fabs(z * u) / 2 * (tanh_error(7) + 2 * kU) + 3 * kU * std::fabs(value) + 1e-44);
  }
  const auto n = static_cast<std::int64_t>(gate.size());
  std::vector<float> y(gate.size());
  fast().gelu_mul(gate.data(), up.data(), n, y.data());
  EXPECT_TRUE(within(y, expected, bound));
  std::vector<float> in_gate = gate, in_up = up;
  fast().gelu_mul(in_gate.data(), up.data(), n, in_gate.data());
  fast().gelu_mul(gate.data(), in_up.data(), n, in_up.data());
  EXPECT_TRUE(same_bits(in_gate, y));
  EXPECT_TRUE(same_bits(in_up, y));
}

// ---- attention ----

/// Queries, and a ring of K/V rows of several K/V heads, of which one is attended to.
template <typename Kv>
struct Attention {
  std::int64_t heads, head_dim, kv_heads, kv_head, capacity;
  std::int64_t first;  ///< position of the first visible key
  std::int64_t count;
  std::vector<float> q = {};
  std::vector<Kv> k = {}, v = {};

  static Kv stored(float x) {
    if constexpr (std::is_same_v<Kv, float>)
      return x;
    else
      return to_bf16(x);
  }

  void fill(CounterRng& rng) {
    q.resize(static_cast<std::size_t>(heads * head_dim));
    k.resize(static_cast<std::size_t>(capacity * kv_heads * head_dim));
    v.resize(k.size());
    const double scale = 6 / std::sqrt(static_cast<double>(head_dim));  // scores of a few units
    for (float& x : q) x = static_cast<float>((rng.uniform() * 2 - 1) * scale);
    for (Kv& x : k) x = stored(static_cast<float>(rng.uniform() * 2 - 1));
    for (Kv& x : v) x = stored(static_cast<float>(rng.uniform() * 2 - 1));
  }

  KvView view() const {
    return {.dtype = std::is_same_v<Kv, float> ? DType::kF32 : DType::kBf16,
            .k = k.data(),
            .v = v.data(),
            .capacity = capacity,
            .num_key_value_heads = kv_heads,
            .head_dim = head_dim};
  }

  /// The same visible rows in a ring of another size; what is not visible is NaN.
  Attention moved(std::int64_t to_capacity) const {
    Attention to = *this;
    to.capacity = to_capacity;
    const std::int64_t row = kv_heads * head_dim;
    to.k.assign(static_cast<std::size_t>(to_capacity * row), stored(std::numeric_limits<float>::quiet_NaN()));
    to.v = to.k;
    for (std::int64_t j = 0; j < count; ++j) {
      const std::int64_t from_row = (first + j) % capacity * row, to_row = (first + j) % to_capacity * row;
      std::copy_n(k.begin() + from_row, row, to.k.begin() + to_row);
      std::copy_n(v.begin() + from_row, row, to.v.begin() + to_row);
    }
    return to;
  }

  /// @param seen what each head sees, as if it were a row of its own; all keys if empty
  std::vector<float> run(const KernelTable& table, std::int64_t first_head = 0, std::int64_t some_heads = -1,
                         const std::vector<std::pair<std::int64_t, std::int64_t>>& seen = {}) const {
    if (some_heads < 0) some_heads = heads;
    std::vector<float> largest(static_cast<std::size_t>(some_heads)), sum(largest.size());
    std::vector<float> scores(static_cast<std::size_t>(some_heads * count) + 1, -77.0f),
        out(static_cast<std::size_t>(some_heads * head_dim) + 1, -77.0f);
    std::vector<AttendQuery> queries;
    for (std::int64_t h = 0; h < some_heads; ++h) {
      const auto [begin, end] = seen.empty() ? std::pair(std::int64_t{0}, count) : seen[static_cast<std::size_t>(h)];
      queries.push_back({.q = q.data() + (first_head + h) * head_dim,
                         .begin = begin,
                         .end = end,
                         .scores = scores.data() + h * count,
                         .out = out.data() + h * head_dim,
                         .largest = largest.data() + h,
                         .sum = sum.data() + h});
    }
    const AttendArgs<Kv> args = {.queries = queries.data(),
                                 .query_count = some_heads,
                                 .head_dim = head_dim,
                                 .k = k.data() + kv_head * head_dim,
                                 .v = v.data() + kv_head * head_dim,
                                 .row_stride = kv_heads * head_dim,
                                 .capacity = capacity,
                                 .first = first,
                                 .count = count};
    if constexpr (std::is_same_v<Kv, float>)
      table.attend_f32(args);
    else
      table.attend_bf16(args);
    EXPECT_EQ(scores.back(), -77.0f) << "wrote past the scores";
    EXPECT_EQ(out.back(), -77.0f) << "wrote past the output";
    out.pop_back();
    for (std::size_t i = 0; i < out.size(); ++i) out[i] *= 1.0f / sum[i / static_cast<std::size_t>(head_dim)];
    return out;
  }

  /// Double precision result and how far `table` may be from it.
  void reference(const KernelTable& table, std::vector<double>& expected, std::vector<double>& bound) const {
    // Tiles (AMX) have queries and weights rounded to bfloat16.
    const bool tiles = table.gemm_bf16_tiles != nullptr && std::is_same_v<Kv, Bf16> && head_dim % 32 == 0;
    const double operand_error = tiles ? 0x1.0p-8 : 0;
    const auto at = [&](const std::vector<Kv>& rows, std::int64_t j, std::int64_t d) {
      return static_cast<double>(
          to_float(rows[static_cast<std::size_t>(((first + j) % capacity * kv_heads + kv_head) * head_dim + d)]));
    };
    for (std::int64_t h = 0; h < heads; ++h) {
      std::vector<double> score(static_cast<std::size_t>(count));
      double largest = -1e300, smallest = 1e300, score_error = 0, largest_v = 0;
      for (std::int64_t j = 0; j < count; ++j) {
        double sum = 0, size = 0;
        for (std::int64_t d = 0; d < head_dim; ++d) {
          const double product = static_cast<double>(q[static_cast<std::size_t>(h * head_dim + d)]) * at(k, j, d);
          sum += product, size += std::fabs(product), largest_v = std::max(largest_v, std::fabs(at(v, j, d)));
        }
        score[static_cast<std::size_t>(j)] = sum;
        largest = std::max(largest, sum), smallest = std::min(smallest, sum);
        score_error = std::max(score_error, (static_cast<double>(head_dim + 1) * kU + operand_error) * size);
      }
      double total = 0;
      for (double& s : score) total += s = std::exp(s - largest);
      // A weight is off by the errors of two scores (its own, those of the sum), the subtraction, exp twice,
      // the sum's roundings and three more; the output by count + 1 roundings on top.
      const double weight_error = 2 * (score_error + (largest - smallest) * kU + kExpError) +
                                  (static_cast<double>(count) + 3) * kU + operand_error;
      for (std::int64_t d = 0; d < head_dim; ++d) {
        double sum = 0, size = 0;
        for (std::int64_t j = 0; j < count; ++j) {
          const double term = score[static_cast<std::size_t>(j)] / total * at(v, j, d);
          sum += term, size += std::fabs(term);
        }
        expected.push_back(sum);
        // exp is clamped at -87: keys that far down keep a weight of e^-87.
        bound.push_back(size * (std::expm1(weight_error) + static_cast<double>(count + 1) * kU) +
                        static_cast<double>(count) * 1.7e-38 * largest_v);
      }
    }
  }
};

template <typename Kv>
void check_attention(const KernelTable& table, std::uint64_t seed) {
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  CounterRng rng(seed);
  constexpr std::int64_t kHeadDims[] = {8, 16, 24, 32, 64, 80, 96, 128, 256, 512};
  Attention<Kv> a{};
  a.heads = 1 + static_cast<std::int64_t>(rng.below(8));
  a.head_dim = kHeadDims[seed % std::size(kHeadDims)];
  a.kv_heads = 1 + static_cast<std::int64_t>(rng.below(3));
  a.kv_head = static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(a.kv_heads)));
  a.capacity = 1 + static_cast<std::int64_t>(rng.below(90));
  a.count = 1 + static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(a.capacity)));
  // Mostly near the end of the ring, so that the rows wrap.
  const std::int64_t back = static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(a.count) + 1));
  a.first = static_cast<std::int64_t>(rng.below(4)) * a.capacity +
            (a.capacity - std::max<std::int64_t>(back, 1)) % a.capacity;
  a.fill(rng);
  SCOPED_TRACE(testing::Message() << "heads " << a.heads << ", head_dim " << a.head_dim << ", capacity " << a.capacity
                                  << ", first " << a.first << ", count " << a.count);

  const std::vector<float> out = a.run(table);
  std::vector<double> expected, bound;
  a.reference(table, expected, bound);
  EXPECT_TRUE(within(out, expected, bound));

  // Neither the place in the ring nor the other heads of the group matter, bit for bit.
  EXPECT_TRUE(same_bits(a.moved(a.first + a.count + 7).run(table), out)) << "moved to a ring that has not gone round";
  EXPECT_TRUE(same_bits(a.moved(a.count).run(table), out)) << "moved to a full ring";
  for (std::int64_t h = 0; h < a.heads; ++h) {
    const auto from = out.begin() + h * a.head_dim;
    EXPECT_TRUE(same_bits(a.run(table, h, 1), {from, from + a.head_dim})) << "head " << h << " alone";
  }
}

TEST_P(Kernels, AttendIsWithinItsRoundingsAnywhereInTheRing) {
  for (std::uint64_t seed = 0; seed < 120; ++seed) {
    check_attention<float>(fast(), seed);
    check_attention<Bf16>(fast(), seed);
    if (HasFailure()) return;
  }
}

/// Queries of several rows, each with a range of keys of its own, against what each gets alone.
template <typename Kv>
void check_queries_together(const KernelTable& table, std::uint64_t seed) {
  CounterRng rng(seed);
  constexpr std::int64_t kHeadDims[] = {8, 24, 64, 80, 128, 256};
  const std::int64_t count = 1 + static_cast<std::int64_t>(rng.below(100)),
                     queries = 1 + static_cast<std::int64_t>(rng.below(12));
  Attention<Kv> a{.heads = queries,
                  .head_dim = kHeadDims[seed % std::size(kHeadDims)],
                  .kv_heads = 2,
                  .kv_head = 1,
                  .capacity = count + 5,
                  .first = static_cast<std::int64_t>(rng.below(200)),
                  .count = count};
  a.fill(rng);
  SCOPED_TRACE(testing::Message() << "seed " << seed << ": " << queries << " queries, " << count << " keys, head_dim "
                                  << a.head_dim);
  std::vector<std::pair<std::int64_t, std::int64_t>> seen;
  for (std::int64_t i = 0; i < queries; ++i) {
    const std::int64_t begin = static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(count)));
    // Ranges that overlap, those of a causal text among them, and some that do not.
    seen.push_back(
        seed % 3 == 0
            ? std::pair(std::int64_t{0}, count - i % count)
            : std::pair(begin,
                        begin + 1 + static_cast<std::int64_t>(rng.below(static_cast<std::uint64_t>(count - begin)))));
  }
  const std::vector<float> together = a.run(table, 0, queries, seen);
  for (std::int64_t i = 0; i < queries; ++i) {
    Attention<Kv> alone = a;
    const auto [begin, end] = seen[static_cast<std::size_t>(i)];
    alone.first = a.first + begin, alone.count = end - begin;
    const auto from = together.begin() + i * a.head_dim;
    // Elsewhere and beside NaN: a key out of sight is not even multiplied by zero.
    EXPECT_TRUE(same_bits(alone.moved(alone.count + 3).run(table, i, 1), {from, from + a.head_dim}))
        << "query " << i << " sees [" << begin << ", " << end << ")";
  }
}

TEST_P(Kernels, AttendGivesAQueryTheSameBitsBesideAnyOthers) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    check_queries_together<float>(fast(), seed);
    check_queries_together<Bf16>(fast(), seed);
    if (HasFailure()) return;
  }
}

TEST_P(Kernels, AttendSurvivesEqualAndFarApartScores) {
  Attention<float> a{.heads = 2, .head_dim = 8, .kv_heads = 1, .kv_head = 0, .capacity = 40, .first = 30, .count = 33};
  CounterRng rng(9);
  for (const float size : {0.0f, 1e3f, 1e18f}) {  // all equal; one key takes all; scores near 1e37
    a.fill(rng);
    for (float& x : a.q) x = size;
    for (float& x : a.k) x *= size;
    for (const float y : a.run(fast())) {
      ASSERT_TRUE(std::isfinite(y)) << "size " << size;
      ASSERT_LE(std::fabs(y), 1.0f + 40 * kU) << "size " << size;  // a mean of values in [-1, 1]
    }
  }
}

#ifdef __SANITIZE_THREAD__
constexpr int kThreadCounts[] = {1};  // it takes libgomp's barriers for races (tests/tsan.supp)
#else
constexpr int kThreadCounts[] = {1, 2, 5, 40};
#endif

// A long row is attended to in spans, which are spread over the threads where there are few rows.
TEST(Attend, ALongRowGetsTheSameBitsOnAnyThreadsBesideAnyRows) {
  constexpr std::int64_t kMore = 5;  // rows beside it, each with other keys
  for (const std::int64_t count : {1, 1023, 1024, 1025, 2048, 3333}) {
    SCOPED_TRACE(testing::Message() << "count " << count);
    CounterRng rng(static_cast<std::uint64_t>(count));
    Attention<Bf16> a{.heads = 6,
                      .head_dim = 32,
                      .kv_heads = 1,
                      .kv_head = 0,
                      .capacity = 3400,
                      .first = 3000,
                      .count = count,
                      .q = {},
                      .k = {},
                      .v = {}};
    a.fill(rng);
    const KvView kv = a.view();
    const std::int64_t width = a.heads * a.head_dim;
    const auto attended = [&](int threads, std::int64_t before, std::int64_t after) {
      std::vector<AttendRow> rows;
      Tensor q(before + 1 + after, width), out(before + 1 + after, width);
      for (std::int64_t r = 0; r < before + 1 + after; ++r) {
        rows.push_back({kv, r == before ? a.first : r, r == before ? count : 1 + 700 * r});
        std::copy_n(a.q.begin(), width, q.view()[r].data());
      }
      const int all = team_size();
      set_team_size(threads);
      attend(q.view(), rows, out.view());
      set_team_size(all);
      const auto row = out.view()[before].span();
      return std::vector<float>(row.begin(), row.end());
    };
    const std::vector<float> alone = attended(1, 0, 0);
    for (const int threads : kThreadCounts) {
      EXPECT_EQ(attended(threads, 0, 0), alone) << threads << " threads";
      EXPECT_EQ(attended(threads, 2, kMore - 2), alone) << threads << " threads, among others";
    }
    std::vector<double> expected, bound;
    a.reference(kernels(), expected, bound);
    // Putting spans together takes one exp and three roundings each; values are in [-1, 1].
    const double merging = static_cast<double>(count / 1024) * (kExpError + 3 * kU);
    for (std::size_t i = 0; i < alone.size(); ++i)
      ASSERT_LE(std::fabs(alone[i] - expected[i]), bound[i] + merging) << "element " << i;
  }
}

// Rows of a text read K and V together, in groups that the number of threads decides.
TEST(Attend, RowsOfATextGetTheBitsTheyGetAlone) {
  for (const std::int64_t heads : {1, 3, 4, 70}) {
    for (const std::int64_t window : {0, 7, 600, 1500}) {
      SCOPED_TRACE(testing::Message() << heads << " heads, window " << window);
      constexpr std::int64_t kRows = 21, kContext = 2060;
      CounterRng rng(static_cast<std::uint64_t>(heads + window));
      Attention<Bf16> a{.heads = 2 * heads * kRows,
                        .head_dim = 32,
                        .kv_heads = 2,
                        .kv_head = 0,
                        .capacity = window == 0 ? kContext : window + kRows,
                        .first = 0,
                        .count = 0,
                        .q = {},
                        .k = {},
                        .v = {}};
      a.fill(rng);
      const KvView kv = a.view();
      const std::int64_t width = 2 * heads * a.head_dim;
      const Matrix<const float> q(a.q.data(), {kRows, width});
      std::vector<AttendRow> rows;
      for (std::int64_t r = 0; r < kRows; ++r) {
        const std::int64_t end = kContext - kRows + r + 1, first = window == 0 ? 0 : end - window;
        rows.push_back({kv, first, end - first});
      }
      Tensor alone(kRows, width), all(kRows, width);
      const int threads_before = team_size();
      for (std::int64_t r = 0; r < kRows; ++r) {
        attend({q[r].data(), {1, width}}, {&rows[static_cast<std::size_t>(r)], 1},
               {alone.view()[r].data(), {1, width}});
      }
      for (const int threads : kThreadCounts) {
        set_team_size(threads);
        attend(q, rows, all.view());
        for (std::int64_t r = 0; r < kRows; ++r) {
          const auto got = all.view()[r].span(), expected = alone.view()[r].span();
          EXPECT_TRUE(same_bits({got.begin(), got.end()}, {expected.begin(), expected.end()}))
              << "row " << r << ", " << threads << " threads";
        }
      }
      set_team_size(threads_before);
      // And that is right.
      const AttendRow& last = rows.back();
      for (std::int64_t kv_head = 0; kv_head < 2; ++kv_head) {
        Attention<Bf16> row = a;
        row.heads = heads, row.kv_head = kv_head, row.first = last.first, row.count = last.count;
        const float* const from = q[kRows - 1].data() + kv_head * heads * a.head_dim;
        row.q.assign(from, from + heads * a.head_dim);
        std::vector<double> expected, bound;
        row.reference(kernels(), expected, bound);
        for (double& b : bound) b += static_cast<double>(last.count / 1024) * (kExpError + 3 * kU);
        const float* const got = alone.view()[kRows - 1].data() + kv_head * heads * a.head_dim;
        EXPECT_TRUE(within({got, got + heads * a.head_dim}, expected, bound)) << "K/V head " << kv_head;
      }
    }
  }
}

// Rows that are no text: each gets what it gets alone, and nothing is read that nobody sees.
TEST(Attend, RowsInAnyOrderGetTheBitsTheyGetAlone) {
  using Keys = std::pair<std::int64_t, std::int64_t>;  // first, count
  const std::vector<std::vector<Keys>> cases = {{{100, 1024}, {37, 1024}, {163, 1024}},
                                                {{0, 1}, {63, 1}},
                                                {{0, 4}, {60, 4}},
                                                {{5, 40}, {5, 7}, {5, 40}, {9, 2}},
                                                {{2, 3}, {5, 3}, {8, 3}}};
  for (const std::int64_t head_dim : {8, 32}) {
    for (const auto& keys : cases) {
      std::int64_t capacity = 0;  // just enough for each row
      for (const auto& [first, count] : keys) capacity = std::max(capacity, count);
      Attention<Bf16> a{.heads = std::ssize(keys),
                        .head_dim = head_dim,
                        .kv_heads = 1,
                        .kv_head = 0,
                        .capacity = capacity,
                        .first = 0,
                        .count = 0,
                        .q = {},
                        .k = {},
                        .v = {}};
      CounterRng rng(1);
      a.fill(rng);
      // On the heap by themselves, so that AddressSanitizer sees what is read beside them.
      const std::vector<Bf16> k = a.k, v = a.v;
      const KvView kv{.dtype = DType::kBf16,
                      .k = k.data(),
                      .v = v.data(),
                      .capacity = capacity,
                      .num_key_value_heads = 1,
                      .head_dim = head_dim};
      std::vector<AttendRow> rows;
      for (const auto& [first, count] : keys) rows.push_back({kv, first, count});
      const std::int64_t count = std::ssize(rows);
      std::vector<float> alone(static_cast<std::size_t>(count * head_dim)), all(alone.size());
      const Matrix<const float> q(a.q.data(), {count, head_dim});
      for (std::int64_t r = 0; r < count; ++r)
        attend({q[r].data(), {1, head_dim}}, {&rows[static_cast<std::size_t>(r)], 1},
               {alone.data() + r * head_dim, {1, head_dim}});
      attend(q, rows, {all.data(), {count, head_dim}});
      EXPECT_TRUE(same_bits(all, alone)) << "first row sees " << keys[0].first << ", head_dim " << head_dim;
    }
  }
}

// Two keys with scores 0 and -t, values 0 and 1: the output is exp(-t) / (1 + exp(-t)).
TEST_P(Kernels, ExpIsWithinItsPromiseOverAWideRange) {
  Attention<float> a{.heads = 1,
                     .head_dim = 1,
                     .kv_heads = 1,
                     .kv_head = 0,
                     .capacity = 2,
                     .first = 0,
                     .count = 2,
                     .q = {1},
                     .k = {0, 0},
                     .v = {0, 1}};
  const auto check = [&](double t) {
    a.k[1] = static_cast<float>(-t);
    const double e = std::exp(static_cast<double>(a.k[1])), expected = e / (1 + e);
    // Its sum, its reciprocal and two products; past -87 only the clamp.
    const double bound = t <= 87 ? expected * (kExpError + 4 * kU) + 1e-44 : 1.7e-38;
    ASSERT_TRUE(within(a.run(fast()), {expected}, {bound})) << "t " << t;
  };
  for (int i = 0; i < 100000 && !HasFatalFailure(); ++i) check(i * 1e-3);
  for (double t = 1e-8; t < 1e30 && !HasFatalFailure(); t *= 1.3) check(t);
}

// Rows as long as a vocabulary are shared by a team, in pieces.
class Pieces : public testing::Test {
 protected:
  static constexpr std::int64_t kLong = 262144 + 5;
  Pieces() { set_team_size(3); }
  ~Pieces() override { set_team_size(before_); }
  CounterRng rng_ = CounterRng(31);

 private:
  int before_ = team_size();
};

TEST_F(Pieces, ArgmaxIsTheLowestIndexOfTheLargest) {
  std::vector<float> x(static_cast<std::size_t>(kLong), -1.0f);
  EXPECT_EQ(argmax(x), 0);
  for (int repeat = 0; repeat < 50; ++repeat) {
    const auto first = static_cast<std::size_t>(rng_.below(kLong)),
               second = static_cast<std::size_t>(rng_.below(kLong));
    x[first] = x[second] = 2.0f;
    ASSERT_EQ(argmax(x), static_cast<std::int64_t>(std::min(first, second)));
    x[first] = x[second] = -1.0f;
  }
  x.back() = 0.0f;
  EXPECT_EQ(argmax(x), kLong - 1);
}

TEST_F(Pieces, OneNumberThatIsNotFiniteIsFound) {
  std::vector<float> x = make_row(rng_, kLong, Fill::kLarge);
  EXPECT_TRUE(all_finite(x));
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const float bad : {kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN()}) {
    for (const std::int64_t at : {std::int64_t{0}, std::int64_t{100'000}, kLong - 1}) {
      const float before = std::exchange(x[static_cast<std::size_t>(at)], bad);
      EXPECT_FALSE(all_finite(x)) << bad << " at " << at;
      x[static_cast<std::size_t>(at)] = before;
    }
  }
}

TEST_F(Pieces, FunctionsOfARowAreThoseOfItsPieces) {
  std::vector<float> x = make_row(rng_, kLong), whole = x;
  kernels().softcap(whole.data(), 0.5f, kLong);
  softcap_in_place({x.data(), {1, kLong}}, 0.5f);
  EXPECT_EQ(x, whole);
  constexpr std::int64_t kRows = 3, kColumns = 10240 + 7;
  const std::vector<float> gate = make_row(rng_, kRows * kColumns), up = make_row(rng_, kRows * kColumns);
  std::vector<float> y(gate.size()), by_row(gate.size());
  gelu_mul({gate.data(), {kRows, kColumns}}, {up.data(), {kRows, kColumns}}, {y.data(), {kRows, kColumns}});
  for (std::int64_t at = 0; at < kRows * kColumns; at += kColumns)
    kernels().gelu_mul(gate.data() + at, up.data() + at, kColumns, by_row.data() + at);
  EXPECT_EQ(y, by_row);
}

}  // namespace
}  // namespace outrider
