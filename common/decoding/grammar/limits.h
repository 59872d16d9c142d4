#pragma once

#include <cstddef>

#include "common/base/result.h"

namespace outrider {

/// Longest grammar. Compilation for a large vocabulary may take minutes, the more likely the longer the grammar.
inline constexpr std::size_t kGrammarBytesMax = 128 << 10;

/// @return kOutOfRange for more than `bytes_max` @param what  the subject of the message
inline Result<void> check_size(const char* what, std::size_t bytes, std::size_t bytes_max = kGrammarBytesMax) {
  if (bytes <= bytes_max) return {};
  return Error(Errc::kOutOfRange, "{} has {} bytes, wanted at most {}", what, bytes, bytes_max);
}

}  // namespace outrider
