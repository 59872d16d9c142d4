#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace outrider {

/// XXH3's 128 bits, high half first.
using Hash128 = std::array<std::uint64_t, 2>;

Hash128 hash128(std::string_view bytes);
std::uint64_t hash64(std::string_view bytes);
/// Returns 32 hexadecimal digits.
std::string hex(const Hash128& hash);

/// hash128 of streamed bytes.
class StreamedHash {
 public:
  StreamedHash();
  void add(std::string_view bytes);
  Hash128 value() const;

 private:
  std::shared_ptr<void> state_;
};

}  // namespace outrider
