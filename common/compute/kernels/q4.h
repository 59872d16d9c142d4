#pragma once

#include <cstdint>
#include <span>

namespace outrider {

// Weights of WeightType::kQ4: the grids of a 4-bit file, kept exactly (q4_grid.h). Each group of 32 inputs of an output
// has a float16 scale; each output has a power of two, which makes bfloat16's range fit. Inputs have 16 bits and a
// scale per 32, so that a group's products are sums of integers, the same on every instruction set; groups are added in
// order.

/// 32 outputs x 64 inputs in 18 cache lines. A weight is scale * (nibble - 8), times its output's power of two.
struct Q4Chunk {
  std::uint16_t scale[2][2][16];      ///< float16: [outputs 0-15, 16-31][inputs 0-31, 32-63][output]
  std::uint8_t nibbles[2][2][4][64];  ///< as in an Int4Chunk
};
static_assert(sizeof(Q4Chunk) == 18 * 64);

/// 32 inputs of a row: input i is scale * (256 * high[i] + low[i]).
struct Q4Input {
  std::int8_t high[32], low[32];
  std::int32_t offset;  ///< -8 times the sum of the integers, which corrects for nibbles without their -8
  float scale;          ///< NaN if an input is not finite
};
static_assert(sizeof(Q4Input) == 72);

/// Layout of a packed matrix: blocks, steps and chunks as for int4 (int4.h).
inline constexpr char kQ4Layout[] = "q4.g32.v1";

/// Writes the weights of one output into its place in the matrix at `chunks`, which was zeroed: exactly if they are on
/// grids whose steps are no farther apart than float16's range, else rounded as Q4_0. @return the output's power of two
float pack_q4_row(std::span<const float> row, std::int64_t output, Q4Chunk* chunks);

/// See copy_int4_row().
void copy_q4_row(const Q4Chunk* from, std::int64_t from_output, std::int64_t in_features, Q4Chunk* to,
                 std::int64_t to_output);

/// Rounds a row for the kernels: `groups` groups, padded with zeros. The error of an input is at most half its group's
/// scale, which is the group's largest / 32639.
void round_q4_inputs(std::span<const float> row, std::int64_t groups, Q4Input* to);

}  // namespace outrider
