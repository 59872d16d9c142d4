#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "common/wire/messages/messages.h"

namespace outrider {

/// Returns true if the sequence continues from `base` with exactly these tokens.
bool is_outcome(std::span<const TokenId> tokens, Position base, std::span<const TokenId> after);

/// Drafts that drafters send unasked while a round is verified, for possible outcomes of that round (Candidates with
/// `after`). A wrong guess costs nothing: drafts are then requested as usual.
class DraftAhead {
 public:
  /// Expects guesses for the round that begins at `base`, at most `most`; 0: none. Forgets the previous round.
  void expect(Position base, int most);
  /// Returns the number of drafts discarded since the last call, without the guess that find() returned last.
  std::int64_t take_wasted() { return std::exchange(wasted_, 0); }
  bool expects() const { return most_ > 0; }
  struct Guess {
    PeerId drafter;
    Candidates drafts;
  };
  /// Stores a guess, if it is for that round.
  void add(Position base, Guess guess);
  /// Returns the guess that matches the sequence; nullptr if none does. Valid until the next change.
  const Guess* find(std::span<const TokenId> tokens);

 private:
  Position base_ = 0;
  int most_ = 0;
  std::vector<Guess> guesses_;             ///< at most most_
  std::optional<std::size_t> right_ = {};  ///< index of the guess that find() returned
  std::int64_t wasted_ = 0;
};

}  // namespace outrider
