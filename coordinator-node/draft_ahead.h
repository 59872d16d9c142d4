#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "common/wire/messages/messages.h"

namespace outrider {

/// Whether the sequence went on from the token at `base` with just these.
bool is_outcome(std::span<const TokenId> text, Position base, std::span<const TokenId> after);

/// What a drafter sends unasked while a round is verified: drafts for ways in which the round may end (Candidates with
/// `after`). A wrong guess is worth nothing and costs nothing: the drafts are asked for as ever.
class DraftAhead {
 public:
  /// The round that begins at `base` is drafted ahead for, at most `most` ways; 0: it is not. Forgets the round before.
  void expect(Position base, int most);
  /// Drafts that were forgotten since the last call, but for those that find() found last.
  std::int64_t take_vain() { return std::exchange(vain_, 0); }
  bool expects() const { return most_ > 0; }
  struct Guess {
    PeerId drafter;
    Candidates drafts;
  };
  /// Keeps a guess about that round, if it is one.
  void add(Position base, Guess guess);
  /// The one about what the sequence has become; nullptr if it became something else. Valid until the next change.
  const Guess* find(std::span<const TokenId> text);

 private:
  Position base_ = 0;
  int most_ = 0;
  std::vector<Guess> guesses_;             ///< as many as most_ at most
  std::optional<std::size_t> right_ = {};  ///< of these, the one that find() found
  std::int64_t vain_ = 0;
};

}  // namespace outrider
