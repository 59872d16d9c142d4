#pragma once

#include <optional>

#include "common/base/time.h"
#include "common/decoding/drafting/draft_length.h"
#include "coordinator-node/round_drafts.h"

namespace outrider {

/// One round: drafts, their verdict, and the measurements of both.
struct Round {
  RoundId id{};
  TimePoint began{};
  std::optional<WireTensor> hidden = {};  ///< the drafter's next input; none once it has been sent
  RoundDrafts drafts = {};
  PeerId drafter = {};                 ///< made the assistant's drafts
  bool asked_drafter = false;          ///< stepwise: the drafter was asked already
  bool queued = false;                 ///< its drafters had to draft for other sequences first
  bool moved = false;                  ///< another verifier began it: its times are not representative
  std::optional<bool> after_all = {};  ///< the previous round was drafted ahead for; true: its drafts were all accepted
  int rows = 0;                        ///< K/V rows of the previous round that were sent to the drafter
  DraftPlan choice = {};
  RoundOutcome outcome = {};  ///< so far

  /// Starts the next round. @param ahead  the previous round was drafted ahead for
  void next(TimePoint now, bool ahead);
  /// Makes answers to all earlier requests late.
  void renumber() { id = outrider::next(id); }
  void choose(const DraftPlan& chosen);

  /// Returns the row of the last draft that a verdict kept.
  std::int64_t row_of(const Verdict& verdict) const { return drafts.depths.empty() ? verdict.accepted : verdict.row; }
  /// Returns true if all drafts are a chain of one source, plus counted lookups after it.
  bool is_plain() const;
  /// Returns true if the drafts of the round's drafter are a token tree; false if the drafter was late.
  bool is_tree() const { return choice.tree && !drafter.empty(); }
  bool has_drafts_of(DraftSource source) const;

  /// Takes drafts that came after `waited`. @return the nanoseconds of drafting
  std::int64_t on_candidates(const PeerId& by, const Candidates& candidates, Duration waited);
  /// Counts a wait for drafts, successful or not, without the time of drafting.
  void count_wait(Duration waited);
  /// Takes the verdict that came after `waited`. @return the nanoseconds of verifying
  std::int64_t on_verdict(const Verdict& verdict, Duration waited, TimePoint now);
};

}  // namespace outrider
