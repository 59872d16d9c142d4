// Packing of q4's weights and inputs.
#include "common/compute/kernels/q4.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "common/compute/tensor/f16.h"
#include "common/compute/tensor/q4_grid.h"

namespace outrider {
namespace {

/// The group of an output at a step.
struct Place {
  std::uint16_t* scale;
  std::uint8_t (*nibbles)[64];
  std::int64_t lane;
};
Place place_of(Q4Chunk* chunks, std::int64_t output, std::int64_t steps, std::int64_t group) {
  Q4Chunk& chunk = chunks[(output / 64 * steps + group / 2) * 2 + output / 32 % 2];
  const std::int64_t half = output / 16 % 2, lane = output % 16;
  return {&chunk.scale[half][group % 2][lane], chunk.nibbles[half][group % 2], lane};
}

bool is_f16(float x) { return to_float(to_f16(x)) == x; }

/// Returns the power of two that makes the steps float16 numbers: 1, or one that gives the largest the exponent 14.
float power_for(std::span<const Q4Group> groups) {
  float largest = 0;
  bool fit = true;
  for (const Q4Group& group : groups) {
    largest = std::max(largest, std::fabs(group.d));
    fit = fit && is_f16(group.d);
  }
  return fit || !std::isfinite(largest) ? 1 : std::ldexp(1.0f, std::ilogb(largest) - 14);
}

}  // namespace

float pack_q4_row(std::span<const float> row, std::int64_t output, Q4Chunk* chunks) {
  std::vector<Q4Group> groups;
  for (std::size_t i = 0; i < row.size(); i += kQ4Group)
    groups.push_back(find_q4_group(row.subspan(i, std::min<std::size_t>(kQ4Group, row.size() - i))));
  const float power = power_for(groups);
  const std::int64_t steps = (std::ssize(groups) + 1) / 2;
  for (std::int64_t g = 0; g < std::ssize(groups); ++g) {
    const Q4Group& group = groups[static_cast<std::size_t>(g)];
    const Place at = place_of(chunks, output, steps, g);
    *at.scale = std::bit_cast<std::uint16_t>(to_f16(group.d / power));
    for (std::size_t i = 0; i < 16; ++i) {
      at.nibbles[i / 4][4 * at.lane + static_cast<std::int64_t>(i % 4)] =
          static_cast<std::uint8_t>(group.code[i] | group.code[16 + i] << 4);
    }
  }
  return power;
}

void copy_q4_row(const Q4Chunk* from, std::int64_t from_output, std::int64_t in_features, Q4Chunk* to,
                 std::int64_t to_output) {
  const std::int64_t steps = (in_features + 2 * kQ4Group - 1) / (2 * kQ4Group);
  for (std::int64_t g = 0; g < 2 * steps; ++g) {
    const Place source = place_of(const_cast<Q4Chunk*>(from), from_output, steps, g),
                target = place_of(to, to_output, steps, g);
    *target.scale = *source.scale;
    for (std::int64_t j = 0; j < 4; ++j)
      std::memcpy(&target.nibbles[j][4 * target.lane], &source.nibbles[j][4 * source.lane], 4);
  }
}

void round_q4_inputs(std::span<const float> row, std::int64_t groups, Q4Input* to) {
  constexpr float kLargest = 32639;              // 256 * 127 + 127
  constexpr float kRoundingShift = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  constexpr std::int32_t kInfinity = 0x7f800000;
  for (std::int64_t g = 0; g < groups; ++g) {
    float x[kQ4Group] = {};
    const std::int64_t first = g * kQ4Group, count = std::clamp<std::int64_t>(std::ssize(row) - first, 0, kQ4Group);
    std::copy_n(row.data() + std::min(first, std::ssize(row)), count, x);
    std::int32_t largest_bits = 0;  // as bits, non-negative floats compare like their values
    for (const float v : x) {
      const auto bits = static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(v) & 0x7fffffffu);
      largest_bits = bits > largest_bits ? bits : largest_bits;
    }
    const float largest = std::bit_cast<float>(largest_bits);
    const bool finite = largest_bits < kInfinity;
    const float inverse = !finite || largest < 1e-30f ? 0 : kLargest / largest;
    to[g].scale = finite ? largest / kLargest : std::numeric_limits<float>::quiet_NaN();
    std::int32_t sum = 0;
    for (int i = 0; i < kQ4Group; ++i) {
      // The low bits of the shifted number are the integer's; a non-finite one has none.
      const float shifted = x[i] * inverse + kRoundingShift;
      const std::int32_t integer = finite ? std::bit_cast<std::int32_t>(shifted) - 0x4b400000 : 0;
      const std::int32_t high = (integer + 128) >> 8;
      to[g].high[i] = static_cast<std::int8_t>(high);
      to[g].low[i] = static_cast<std::int8_t>(integer - 256 * high);
      sum += integer;
    }
    to[g].offset = -8 * sum;
  }
}

}  // namespace outrider
