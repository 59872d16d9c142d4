#include "common/protocol/draft_ahead.h"

#include <algorithm>

namespace outrider {

bool is_outcome(std::span<const TokenId> text, Position base, std::span<const TokenId> after) {
  return base >= 0 && base + 1 + std::ssize(after) == std::ssize(text) &&
         std::ranges::equal(text.last(after.size()), after);
}

void DraftAhead::expect(Position base, int most) {
  base_ = base;
  most_ = most;
  guesses_.clear();
}

void DraftAhead::add(Position base, Candidates guess) {
  if (base == base_ && std::ssize(guesses_) < most_) guesses_.push_back(std::move(guess));
}

Candidates* DraftAhead::find(std::span<const TokenId> text) {
  const auto right = std::ranges::find_if(
      guesses_, [&](const Candidates& guess) { return !guess.tokens.empty() && is_outcome(text, base_, guess.after); });
  return right == guesses_.end() ? nullptr : &*right;
}

}  // namespace outrider
