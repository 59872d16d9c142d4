#pragma once

#include <cstdint>
#include <span>

namespace outrider {

// Weights of WeightType::kInt4: 4 bits each, a byte per group of 32 inputs of an output, a float per output. A group's
// byte scales and shifts the 16 values of a nibble to int8 weights, so that sums over whole rows are exact and equal in
// every kernel (ADR 5).

inline constexpr std::int64_t kInt4Group = 32;         ///< inputs that share a byte
inline constexpr std::int64_t kInt4ChunkOutputs = 32;  ///< outputs of a chunk; a block of 64 has two chunks per step

/// 32 outputs x 64 inputs in 17 cache lines. A weight is nibble * int4_multiplier - int4_zero, which is in -128..127,
/// times its output's scale.
struct Int4Chunk {
  std::uint8_t group[2][2][16];  ///< [outputs 0-15, 16-31][inputs 0-31, 32-63][output]
  std::uint8_t nibbles[2][2][4]
                      [64];  ///< [...][...][j][4 * output + i]: input 4j + i of the group low, 16 + 4j + i high
};
static_assert(sizeof(Int4Chunk) == 17 * 64);

/// Multiplier in a group's byte: 1 to 15; 0 makes all its weights zero.
constexpr int int4_multiplier(int group) { return group & 15; }
/// Zero point in a group's byte: 5.75, 6, 6.25, ... or 9.5 times the multiplier, rounded to an integer.
constexpr int int4_zero(int group) { return (int4_multiplier(group) * (23 + (group >> 4)) + 3) >> 2; }

/// The layout of a packed matrix: blocks of 64 outputs, each a run of steps of 64 inputs, each two chunks. Outputs and
/// inputs are padded with zeros to whole blocks and steps.
inline constexpr char kInt4Layout[] = "int4.g32.v2";

/// Rounds the weights of one output into its place in the matrix at `chunks`, which was zeroed. Deterministic, the same
/// on every CPU. NaN becomes 0, and magnitudes are clamped to 1e30. @return the output's scale
float pack_int4_row(std::span<const float> row, std::int64_t output, Int4Chunk* chunks);

/// Copies an output of a matrix with `in_features` inputs to a zeroed place in another.
void copy_int4_row(const Int4Chunk* from, std::int64_t from_output, std::int64_t in_features, Int4Chunk* to,
                   std::int64_t to_output);

}  // namespace outrider
