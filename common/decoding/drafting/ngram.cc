#include "common/decoding/drafting/ngram.h"

#include <algorithm>

namespace outrider {

std::span<const TokenId> ngram_draft(std::span<const TokenId> history, std::size_t length) {
  constexpr std::size_t kMatchMin = 2, kMatchMax = 16;
  const std::size_t size = history.size();
  std::size_t best_match = kMatchMin - 1, best_end = size;
  for (std::size_t end = size - std::min<std::size_t>(size, 1); end > best_match; --end) {
    const std::size_t most = std::min(end, kMatchMax);
    std::size_t match = 0;
    while (match < most && history[end - 1 - match] == history[size - 1 - match]) ++match;
    if (match <= best_match) continue;
    best_match = match;
    best_end = end;
    if (match == kMatchMax) break;
  }
  return history.subspan(best_end, std::min(length, size - best_end));
}

}  // namespace outrider
