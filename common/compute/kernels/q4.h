#pragma once

#include <cstdint>
#include <span>

namespace outrider {

// Weights of WeightType::kQ4: the grids of a 4-bit file, kept exactly (q4_grid.h). A float16 for 32 inputs of an
// output, and a power of two for every output, by which bfloat16's range fits. Inputs have 16 bits and a scale for 32
// of them, so that products of a group are sums of integers, the same on every instruction set; groups are added in
// order.

/// 32 outputs x 64 inputs in 18 cache lines. A weight is scale * (nibble - 8), times its output's power of two.
struct Q4Chunk {
  std::uint16_t scale[2][2][16];      ///< float16: [outputs 0-15, 16-31][inputs 0-31, 32-63][output]
  std::uint8_t nibbles[2][2][4][64];  ///< as those of an Int4Chunk
};
static_assert(sizeof(Q4Chunk) == 18 * 64);

/// 32 inputs of a row: input i is scale * (256 * high[i] + low[i]).
struct Q4Input {
  std::int8_t high[32], low[32];
  std::int32_t offset;  ///< -8 times the sum of the integers: what nibbles without their 8 have too much
  float scale;          ///< NaN where an input is not finite
};
static_assert(sizeof(Q4Input) == 72);

/// The layout of a packed matrix: blocks, steps and chunks as of int4 (int4.h).
inline constexpr char kQ4Layout[] = "q4.g32.v1";

/// Puts the weights of one output into its place in the matrix at `chunks`, which was all zeros there: exactly where
/// they lie on grids whose steps are no farther apart than float16's range, else rounded as Q4_0. @return the output's
/// power of two
float pack_q4_row(std::span<const float> row, std::int64_t output, Q4Chunk* chunks);

/// As copy_int4_row().
void copy_q4_row(const Q4Chunk* from, std::int64_t from_output, std::int64_t in_features, Q4Chunk* to,
                 std::int64_t to_output);

/// A row as the kernels multiply it: `groups` of it, of zeros past its end. An input is off by half its group's scale
/// at most, which is the group's largest / 32639.
void round_q4_inputs(std::span<const float> row, std::int64_t groups, Q4Input* to);

}  // namespace outrider
