#pragma once

#include <cstddef>

namespace outrider {

/// Longest grammar. Some need minutes to be made ready for a large vocabulary, and how many grows with their length.
inline constexpr std::size_t kGrammarBytesMax = 128 << 10;

}  // namespace outrider
