#include "common/decoding/sampling/masks.h"

#include <algorithm>
#include <limits>

namespace outrider {

std::vector<TokenId> completes_bad_word(std::span<const TokenWord> words, std::span<const TokenId> answer) {
  std::vector<TokenId> last;
  for (const TokenWord& word : words) {
    const std::span<const TokenId> before = std::span(word.tokens).first(word.tokens.size() - 1);
    if (before.size() > answer.size()) continue;
    if (std::ranges::equal(before, answer.last(before.size()))) last.push_back(word.tokens.back());
  }
  return last;
}

void keep_allowed(std::span<const TokenId> allowed, std::span<float> scores) {
  if (allowed.empty()) return;
  std::vector<float> kept;
  for (const TokenId token : allowed) kept.push_back(scores[static_cast<std::size_t>(token)]);
  std::ranges::fill(scores, -std::numeric_limits<float>::infinity());
  for (std::size_t i = 0; i < allowed.size(); ++i) scores[static_cast<std::size_t>(allowed[i])] = kept[i];
}

}  // namespace outrider
