// int4 weights: what they are rounded to, and on every instruction set KernelTable::gemm_int4.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include <fmt/format.h>

#include "common/kernels/int4.h"
#include "common/kernels/isa.h"
#include "common/kernels/kernel_table.h"
#include "common/kernels/packed_matrix.h"

namespace outrider {
namespace {

constexpr float kLargestHalf = 65504.0f;

// Four lanes: what every x86-64 CPU has. The order of the sums is fixed, so every CPU packs the same bits.
typedef float V __attribute__((vector_size(16)));
typedef std::int32_t I __attribute__((vector_size(16)));
constexpr std::int64_t kVectors = kInt4Group / 4;

/// round(x * inverse) in [-8, 7], as floats; NaN is -8.
V round_to_int4(V x, float inverse) {
  constexpr float kRoundingShift = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  constexpr V kLow = {-8, -8, -8, -8}, kHigh = {7, 7, 7, 7};
  V q = x * inverse;
  q = q > kLow ? q : kLow;
  q = q < kHigh ? q : kHigh;
  return (q + kRoundingShift) - kRoundingShift;
}

struct Rounded {
  float scale = 0;  ///< exactly a half
  float inverse = 0;
  float error = std::numeric_limits<float>::infinity();  ///< squared
};

Rounded try_scale(const V* x, float wanted) {
  Rounded rounded;
  rounded.scale = to_float(to_f16(std::clamp(wanted, -kLargestHalf, kLargestHalf)));
  rounded.inverse = rounded.scale == 0 ? 0 : 1 / rounded.scale;
  V error{};
  for (std::int64_t i = 0; i < kVectors; ++i) {
    const V miss = x[i] - round_to_int4(x[i], rounded.inverse) * rounded.scale;
    error += miss * miss;
  }
  rounded.error = (error[0] + error[2]) + (error[1] + error[3]);
  return rounded;
}

/// The best scale of a few: the value furthest from zero becomes -8 (Q4_0's choice, and the end that
/// reaches further), something on either side of it, or is cut off a little.
Rounded choose_scale(const V* x) {
  float extreme = 0;
  for (std::int64_t i = 0; i < kInt4Group; ++i) {
    const float value = x[i / 4][i % 4];
    extreme = std::fabs(value) > std::fabs(extreme) ? value : extreme;
  }
  Rounded best;
  for (const float steps : {-8.0f, -7.75f, -8.25f, -7.5f, -8.5f, -7.25f, -8.75f, -7.0f, -9.0f}) {
    const Rounded rounded = try_scale(x, extreme / steps);
    if (rounded.error < best.error) best = rounded;
    if (best.error == 0) break;
  }
  return best;
}

class Int4Matrix final : public PackedMatrix {
 public:
  explicit Int4Matrix(const PackedWeights& weights)
      : PackedMatrix(weights, fmt::format("int4 {}", to_string(active_isa()))) {}

  void multiply(const float* x, std::int64_t rows, float* y) const override {
    const KernelTable& k = kernels();
    const PackedWeights& w = weights();
    const std::int64_t chunks = int4_chunks(w.in), width = chunks * kInt4Inputs, groups = width / kInt4Group;
    const std::int64_t blocks = int4_blocks(w.out);
    auto* const input = scratch<std::int8_t>(Scratch::kInput, rows * width);
    auto* const correction = scratch<std::int32_t>(Scratch::kCorrection, rows * groups);
    auto* const row_scale = scratch<float>(Scratch::kRowScale, rows);
#pragma omp parallel
    {
#pragma omp for schedule(static)
      for (std::int64_t r = 0; r < rows; ++r) {
        std::int8_t* row = input + r * width;
        row_scale[r] = k.quantize(x + r * w.in, w.in, row);
        std::fill(row + w.in, row + width, std::int8_t{0});
        for (std::int64_t g = 0; g < groups; ++g) {
          std::int32_t sum = 0;
          for (std::int64_t i = 0; i < kInt4Group; ++i) sum += row[g * kInt4Group + i];
          correction[r * groups + g] = -8 * sum;
        }
      }
      for_blocks(rows, (blocks + 1) / 2, [&](std::int64_t pair) {
        const std::int64_t b = 2 * pair;
        k.gemm_int4({.weights = reinterpret_cast<const Int4Chunk*>(w.bytes.data()) + b * chunks,
                     .blocks = std::min<std::int64_t>(2, blocks - b),
                     .chunks = chunks,
                     .outputs = std::min(2 * kInt4BlockOutputs, w.out - b * kInt4BlockOutputs),
                     .x = input,
                     .correction = correction,
                     .row_scale = row_scale,
                     .rows = rows,
                     .y = y + b * kInt4BlockOutputs,
                     .y_stride = w.out});
      });
    }
  }
};

}  // namespace

void pack_int4_row(std::span<const float> row, std::int64_t output, Int4Chunk* block) {
  for (std::size_t first = 0; first < row.size(); first += kInt4Group) {
    V x[kVectors] = {};
    std::memcpy(x, row.data() + first, std::min<std::size_t>(kInt4Group, row.size() - first) * sizeof(float));
    const Rounded rounded = choose_scale(x);
    std::int32_t quantized[kInt4Group];
    for (std::int64_t i = 0; i < kVectors; ++i) {
      const auto q = __builtin_convertvector(round_to_int4(x[i], rounded.inverse), I) + 8;
      std::memcpy(quantized + 4 * i, &q, sizeof(q));
    }
    Int4Chunk& chunk = block[first / kInt4Inputs];
    const std::size_t group = first / kInt4Group % 2;
    chunk.scale[group][output] = to_f16(rounded.scale);
    for (std::int64_t i = 0; i < kInt4Group / 2; ++i) {
      chunk.nibbles[group][i / 4][4 * output + i % 4] =
          static_cast<std::uint8_t>(quantized[i] | quantized[16 + i] << 4);
    }
  }
}

std::shared_ptr<const PackedMatrix> make_int4(const PackedWeights& weights) {
  if (weights.type != WeightType::kInt4) return nullptr;
  return std::make_shared<Int4Matrix>(weights);
}

}  // namespace outrider
