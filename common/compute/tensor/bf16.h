#pragma once

#include <bit>
#include <cstdint>

namespace outrider {

/// bfloat16 storage: the upper 16 bits of a float.
struct Bf16 {
  std::uint16_t bits;
};

inline float to_float(Bf16 x) { return std::bit_cast<float>(static_cast<std::uint32_t>(x.bits) << 16); }
inline float to_float(float x) { return x; }

/// Rounds to nearest, ties to even. NaN stays NaN.
inline Bf16 to_bf16(float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return {static_cast<std::uint16_t>((bits >> 16) | 0x40u)};
  return {static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16)};
}

}  // namespace outrider
