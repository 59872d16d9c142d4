#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace outrider {

/// Weights that share a step in a 4-bit file: consecutive inputs of an output.
inline constexpr std::int64_t kQ4Group = 32;

/// 32 weights on a grid of 16 values: weight i is d * (code[i] - 8).
struct Q4Group {
  float d = 0;                                ///< at most 11 significant bits, as float16 has, of either sign
  std::array<std::uint8_t, kQ4Group> code{};  ///< 0 to 15; 8 past the weights' end
  bool exact = true;                          ///< true if the weights are on such a grid
};

/// Finds the grid of at most 32 weights. They are on a grid if they are its values, or its values rounded to bfloat16,
/// as in "unquantized" checkpoints of quantisation-aware training. Others are rounded as ggml's Q4_0.
Q4Group find_q4_group(std::span<const float> weights);

/// Returns true if all groups of 32 in a row are on grids. Rows of zeros are.
bool is_on_q4_grid(std::span<const float> row);

}  // namespace outrider
