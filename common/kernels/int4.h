#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "common/tensor/f16.h"

namespace outrider {

// Weights of WeightType::kInt4: 4 bits each and a scale for every group of an output's inputs, as in
// GGUF's Q4_0, which they can hold without loss. Stored so that every kernel reads them front to back.

inline constexpr std::int64_t kInt4Group = 32;         ///< inputs that share a scale
inline constexpr std::int64_t kInt4BlockOutputs = 16;  ///< a vector's lanes; rows of outputs are padded to whole blocks
inline constexpr std::int64_t kInt4Inputs = 64;        ///< of a chunk; rows are padded with zeros to whole chunks

/// 16 outputs x 64 inputs in nine cache lines. A weight is (nibble - 8) * scale.
struct Int4Chunk {
  F16 scale[2][16];                ///< [group][output]
  std::uint8_t nibbles[2][4][64];  ///< [group][j][4 * output + i]: input 4j + i of the group low, 16 + 4j + i high
};
static_assert(sizeof(Int4Chunk) == 576);

/// The layout of a packed matrix: blocks of outputs, each a run of chunks.
inline constexpr char kInt4Layout[] = "int4.g32.v1";

constexpr std::int64_t int4_chunks(std::int64_t in_features) { return (in_features + kInt4Inputs - 1) / kInt4Inputs; }
constexpr std::int64_t int4_blocks(std::int64_t out_features) {
  return (out_features + kInt4BlockOutputs - 1) / kInt4BlockOutputs;
}

/// Rounds one output's weights into lane `output` (0 .. 15) of its block [int4_chunks(row.size())].
/// Per group: of a few scales the one with the least squared error. Deterministic, the same on every
/// CPU; weights that are 4-bit multiples of a half (Q4_0) come out exact. NaN becomes -8 * scale.
void pack_int4_row(std::span<const float> row, std::int64_t output, Int4Chunk* block);

}  // namespace outrider
