#pragma once

#include <cstdint>

namespace outrider {

/// Finaliser of splitmix64 (Steele et al. 2014): a bijective mix of 64 bits.
constexpr std::uint64_t mix64(std::uint64_t x) {
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9ULL;
  x ^= x >> 27;
  x *= 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

/// FNV-1a of bytes, continuing from `hash`.
template <typename Bytes>
constexpr std::uint64_t fnv1a(const Bytes& bytes, std::uint64_t hash = 0xcbf29ce484222325) {
  for (const auto byte : bytes) hash = (hash ^ static_cast<std::uint8_t>(byte)) * 0x100000001b3;
  return hash;
}

/// Counter-based generator: the n-th value of a seed is a pure function of (seed, n), so that a draw can be repeated on
/// another machine or in another order.
class CounterRng {
 public:
  explicit CounterRng(std::uint64_t seed) : seed_(mix64(seed + 0x9e3779b97f4a7c15ULL)) {}

  static std::uint64_t at(std::uint64_t mixed_seed, std::uint64_t n) {
    return mix64(mixed_seed + 0x9e3779b97f4a7c15ULL * (n + 1));
  }
  std::uint64_t next() { return at(seed_, counter_++); }

  /// Uniform in [0, 1), 53 bits.
  double uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }
  /// Uniform in [0, bound); bound > 0. The bias is below bound / 2^64.
  std::uint64_t below(std::uint64_t bound) { return next() % bound; }

 private:
  std::uint64_t seed_;
  std::uint64_t counter_ = 0;
};

}  // namespace outrider
