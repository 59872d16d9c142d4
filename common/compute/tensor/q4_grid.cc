#include "common/compute/tensor/q4_grid.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <limits>

#include "common/compute/tensor/bf16.h"
#include "common/compute/tensor/f16.h"

namespace outrider {
namespace {

/// Rounds to the nearest of small integers.
float round_small(float x) {
  constexpr float kRoundingShift = 12582912.0f;  // 1.5 * 2^23
  return (x + kRoundingShift) - kRoundingShift;
}

/// Rounds to `bits` significant bits.
float round_bits(float x, int bits) {
  const int dropped = 24 - bits;
  const auto word = std::bit_cast<std::uint32_t>(x);
  return std::bit_cast<float>((word + (1u << (dropped - 1))) >> dropped << dropped);
}

bool is_bf16(float x) { return (std::bit_cast<std::uint32_t>(x) & 0xffffu) == 0; }

/// Finds the codes of weights by their nearest multiples of d. False: `matches` rejects one, or a code is out of range.
template <typename Matches>
bool find_codes(std::span<const float> weights, float d, Q4Group& group, Matches matches) {
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const float steps = round_small(weights[i] / d);
    if (!(steps >= -8 && steps <= 7) || !matches(steps, weights[i])) return false;
    group.code[i] = static_cast<std::uint8_t>(static_cast<int>(steps) + 8);
  }
  group.d = d;
  return true;
}

bool is_exact(std::span<const float> weights, float d, Q4Group& group) {
  if (round_bits(d, 11) != d) return false;
  return find_codes(weights, d, group, [d](float steps, float w) { return d * steps == w; });
}

/// Like is_exact(), for weights rounded to bfloat16: d is near `near`, and each weight restricts it to an interval.
bool rounds_to(std::span<const float> weights, float near, Q4Group& group) {
  double lowest = 0, highest = std::numeric_limits<double>::infinity();
  const bool fits = find_codes(weights, near, group, [&](float steps, float w) {
    if (steps == 0) return w == 0;
    // Half a unit in the last place of a bfloat16: the error of both w and the weight that gave d.
    const double size = std::fabs(static_cast<double>(w)), half = std::ldexp(1.0, std::ilogb(size) - 8),
                 count = std::fabs(static_cast<double>(steps));
    lowest = std::max(lowest, (size - half) / count);
    highest = std::min(highest, (size + half) / count);
    return lowest <= highest;
  });
  if (!fits || !std::isfinite(highest)) return false;
  const auto middle = static_cast<float>(std::copysign((lowest + highest) / 2, static_cast<double>(near)));
  const auto fits_all = [&](float d) {
    return find_codes(weights, d, group, [d](float steps, float w) { return to_float(to_bf16(d * steps)) == w; });
  };
  if (fits_all(round_bits(middle, 8))) return true;
  // Ties between two bfloat16s round to one side, so that a neighbour may be the one that fits.
  const auto at = std::bit_cast<std::uint32_t>(round_bits(middle, 11));
  constexpr std::uint32_t kStep = 1u << 13;
  for (const std::uint32_t place : {at, at - kStep, at + kStep, at - 2 * kStep, at + 2 * kStep})
    if (fits_all(std::bit_cast<float>(place))) return true;
  return false;
}

}  // namespace

Q4Group find_q4_group(std::span<const float> weights) {
  Q4Group group;
  group.code.fill(8);
  float largest = 0;
  bool finite = true;
  for (const float w : weights) {
    finite = finite && std::isfinite(w);
    if (std::fabs(w) > std::fabs(largest)) largest = w;
  }
  if (finite && largest == 0) return group;
  // ggml's step first: the largest weight's code is 0.
  for (float steps = -8; finite && steps <= -1; ++steps)
    if (is_exact(weights, largest / steps, group)) return group;
  const bool rounded = finite && std::ranges::all_of(weights, is_bf16);
  for (float steps = -8; rounded && steps <= -1; ++steps)
    if (rounds_to(weights, largest / steps, group)) return group;

  group.exact = false;
  const float d = largest / -8, inverse = d == 0 ? 0 : 1 / d;
  group.d = round_bits(d, 11);
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const float code = weights[i] * inverse + 8.5f;
    group.code[i] = static_cast<std::uint8_t>(code >= 0 ? std::min(15.0f, code) : 8.0f);
  }
  return group;
}

bool is_on_q4_grid(std::span<const float> row) {
  for (std::size_t i = 0; i < row.size(); i += kQ4Group)
    if (!find_q4_group(row.subspan(i, std::min<std::size_t>(kQ4Group, row.size() - i))).exact) return false;
  return true;
}

}  // namespace outrider
