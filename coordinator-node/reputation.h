#pragma once

#include <string>

#include "common/base/time.h"

namespace outrider {

/// The recent success of a drafter's drafts, and its consequences. The whole rule:
///
/// - Its *yield* is the share of its recent rounds (effectively 32) whose first draft was accepted. A round without
///   sound drafts in time counts as rejected. It starts at one half.
/// - Sequences are assigned to the drafter with the fewest of them relative to its yield.
/// - After kTrial rounds, a drafter that yields less than a quarter of the best other one is *paused*: it gets no new
///   sequences, and loses its present ones. The first pause is 8 s, each further one twice the last, up to 512 s. Then
///   it is tried again, for kTrial rounds; after a successful trial its next pause is half of the last.
/// - A drafter that joins under a key begins with the worst reputation there: of the key's drafters that left, or are
///   here (Fleet).
///
/// A single drafter is never paused: the draft policy decides whether its drafts pay. Only the first draft counts,
/// since the number accepted depends on the number requested. It is compared with others', since acceptance depends on
/// the sequences.
class Reputation {
 public:
  static constexpr int kTrial = 64;

  double yield() const { return yield_; }
  bool paused() const { return paused_; }
  /// Returns true after enough rounds.
  bool is_known() const { return rounds_ >= kTrial && !paused_; }
  /// Returns the length of the last or current pause.
  Duration pause() const { return pause_; }
  /// Returns the drafter's sequences after one more, relative to its yield, to compare drafters.
  double burden(int sessions) const;
  /// Returns true if `other` has the worse reputation: the worse one is remembered.
  bool is_better_than(const Reputation& other) const;

  /// Counts one round.
  /// @param best_other  yield among the other known drafters; 0: there are none
  /// @return true if this round pauses it
  bool count(bool accepted, double best_other, TimePoint now);
  /// Ends a pause whose time is over.
  void on_time(TimePoint now);
  /// Ends a pause because there is no other drafter.
  void end_pause() { on_time(until_); }

 private:
  double yield_ = 0.5;
  int rounds_ = 0;  ///< of the trial; at most kTrial
  bool paused_ = false;
  Duration pause_{};  ///< the last one, halved for each trial since
  TimePoint until_{};
};

/// Returns the key's name, which begins a worker's name; all of it without a key.
std::string key_name(const std::string& worker_name);

}  // namespace outrider
