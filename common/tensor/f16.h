#pragma once

#include <bit>
#include <cstdint>

namespace outrider {

/// IEEE 754 binary16 storage.
struct F16 {
  std::uint16_t bits;
};

/// Exact.
inline float to_float(F16 x) {
  const std::uint32_t sign = (x.bits & 0x8000u) << 16, exponent = (x.bits >> 10) & 0x1fu;
  const std::uint32_t fraction = x.bits & 0x3ffu;
  if (exponent == 0) {  // zero or subnormal: fraction * 2^-24
    const auto magnitude = std::bit_cast<std::uint32_t>(static_cast<float>(fraction) * 0x1p-24f);
    return std::bit_cast<float>(sign | magnitude);
  }
  const std::uint32_t wide_exponent = exponent == 31 ? 255 : exponent + 127 - 15;
  return std::bit_cast<float>(sign | wide_exponent << 23 | fraction << 13);
}

}  // namespace outrider
