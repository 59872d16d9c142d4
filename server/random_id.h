#pragma once

#include <cstdint>
#include <random>
#include <string>

#include <fmt/format.h>

namespace outrider {

/// For seeds, and for names whose guess gives no advantage.
inline std::uint64_t random_number() {
  thread_local std::mt19937_64 generator{std::random_device()()};
  return generator();
}

/// Returns `begin` and 128 unpredictable bits, in hexadecimal digits.
inline std::string random_id(const char* begin) {
  std::random_device random;
  return fmt::format("{}{:08x}{:08x}{:08x}{:08x}", begin, random(), random(), random(), random());
}

}  // namespace outrider
