#pragma once

#include <optional>

#include "common/base/time.h"
#include "common/decoding/drafting/draft_length.h"
#include "coordinator-node/round_drafts.h"

namespace outrider {

/// One round: drafts, a verdict about them, and what is measured of both.
struct Round {
  RoundId id{};
  TimePoint began{};
  std::optional<WireTensor> hidden = {};  ///< the drafter's next input; none once it has been sent
  RoundDrafts drafts = {};
  PeerId drafter = {};                 ///< whose they are, as far as they are the assistant's
  bool asked_drafter = false;          ///< stepwise: the drafter was asked already
  bool queued = false;                 ///< its drafters had others' drafts to make first
  bool moved = false;                  ///< another verifier began it: it says nothing of what rounds cost
  std::optional<bool> after_all = {};  ///< the round before was drafted ahead for; whether all its drafts were accepted
  int rows = 0;                        ///< K/V rows of the round before that went to the drafter
  DraftPlan choice = {};
  RoundOutcome outcome = {};  ///< as far as it has come

  /// The next round. @param ahead  the round before was drafted ahead for
  void next(TimePoint now, bool ahead);
  /// What was asked before is late from now on, wherever it comes from.
  void renumber() { id = outrider::next(id); }
  void choose(const DraftPlan& chosen);

  /// Row of the last draft that a verdict kept.
  std::int64_t row_of(const Verdict& verdict) const { return drafts.depths.empty() ? verdict.accepted : verdict.row; }
  /// Whether all drafts are a chain of one source, and what was looked up behind it and counted as such.
  bool is_plain() const;
  /// Whether its drafter's answer is a token tree. A round whose drafter is late has none, whatever it was asked for.
  bool is_tree() const { return choice.tree && !drafter.empty(); }
  bool has_drafts_of(DraftSource source) const;

  /// Drafts were made ahead, and are taken. @param length  at most so many
  void take_ahead(const PeerId& by, const Candidates& made, std::int64_t length);
  /// Drafts came after `waited`. @return the nanoseconds that making them took
  std::int64_t on_candidates(const PeerId& by, const Candidates& candidates, Duration waited);
  /// Drafts were waited for, with success or not; the time of making them is not in it.
  void count_wait(Duration waited);
  void on_draft_bytes(std::size_t bytes) { outcome.draft_bytes += static_cast<std::int64_t>(bytes); }
  /// The verdict came after `waited`. @return the nanoseconds that verifying took
  std::int64_t on_verdict(const Verdict& verdict, Duration waited, TimePoint now);
};

}  // namespace outrider
