#include "coordinator-node/draft_ahead.h"

#include <algorithm>

namespace outrider {

bool is_outcome(std::span<const TokenId> tokens, Position base, std::span<const TokenId> after) {
  return base >= 0 && base + 1 + std::ssize(after) == std::ssize(tokens) &&
         std::ranges::equal(tokens.last(after.size()), after);
}

void DraftAhead::expect(Position base, int most) {
  base_ = base;
  most_ = most;
  for (std::size_t i = 0; i < guesses_.size(); ++i)
    if (i != right_) wasted_ += std::ssize(guesses_[i].drafts.tokens);
  guesses_.clear();
  right_.reset();
}

void DraftAhead::add(Position base, Guess guess) {
  if (base == base_ && std::ssize(guesses_) < most_) guesses_.push_back(std::move(guess));
}

const DraftAhead::Guess* DraftAhead::find(std::span<const TokenId> tokens) {
  const auto right = std::ranges::find_if(guesses_, [&](const Guess& guess) {
    return !guess.drafts.tokens.empty() && is_outcome(tokens, base_, guess.drafts.after);
  });
  if (right == guesses_.end()) return nullptr;
  right_ = static_cast<std::size_t>(right - guesses_.begin());
  return &*right;
}

}  // namespace outrider
