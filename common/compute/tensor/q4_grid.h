#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace outrider {

/// Weights that a 4-bit file shares a step among: consecutive inputs of an output.
inline constexpr std::int64_t kQ4Group = 32;

/// 32 weights on a grid of 16 values: weight i is d * (code[i] - 8).
struct Q4Group {
  float d = 0;  ///< at most 11 significant bits, as float16 has and bfloat16 more than has; of either sign
  std::array<std::uint8_t, kQ4Group> code{};  ///< 0 to 15; 8 past the weights' end
  bool exact = true;                          ///< whether the weights lie on such a grid
};

/// The grid of at most 32 weights. They lie on one if they are its values, or, as in "unquantized" checkpoints of
/// quantisation-aware training, bfloat16's roundings of its values. Others are rounded as ggml's Q4_0.
Q4Group find_q4_group(std::span<const float> weights);

/// Whether a row's groups of 32 all lie on their grids. Rows of zeros do.
bool is_on_q4_grid(std::span<const float> row);

}  // namespace outrider
