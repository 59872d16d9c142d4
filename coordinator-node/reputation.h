#pragma once

#include <string>

#include "common/base/time.h"

namespace outrider {

/// What a drafter's drafts have brought of late, and what follows for it. The whole rule:
///
/// - Its *yield* is the share of its last rounds (32 of them or so weigh) whose first draft held. A round in which it
///   was asked and had no sound draft in time counts as one that was lost. It begins with a half.
/// - Sequences go to the drafter that would have the fewest of them for its yield.
/// - One that has had kTrial rounds and yields less than a quarter of the best other one is *paused*: it gets no
/// sequences,
///   and those that it has leave it. The first pause is 8 s, each further one twice the last, up to 512 s. Then it is
///   tried again, for kTrial rounds; when these go well, its next pause is half of the last.
/// - Whoever comes back under the same key goes on where its last worker left off (Fleet).
///
/// A drafter alone is never paused: whether its drafts pay is the draft policy's matter. The first draft, since how
/// many of a round hold depends on how many were asked for; against others, since it depends on the sequences.
class Reputation {
 public:
  static constexpr int kTrial = 64;

  double yield() const { return yield_; }
  bool paused() const { return paused_; }
  /// Whether it has been seen for long enough.
  bool is_known() const { return rounds_ >= kTrial && !paused_; }
  /// How long the last pause was, or is.
  Duration pause() const { return pause_; }
  /// How many of its sequences with one more one is: to compare drafters.
  double burden(int sessions) const;
  /// Whether `other` would be the better one to remember of the two: the one that fares worse.
  bool is_better_than(const Reputation& other) const;

  /// One more round. @param best_other yield among the other known ones; 0: there is none. @return whether it is paused
  /// for that.
  bool count(bool held, double best_other, TimePoint now);
  /// Ends a pause that is over.
  void on_time(TimePoint now);
  /// Ends a pause: there is nobody else.
  void end_pause() { on_time(until_); }

 private:
  double yield_ = 0.5;
  int rounds_ = 0;  ///< of the trial; no more than kTrial
  bool paused_ = false;
  Duration pause_{};  ///< the last one, halved for each trial since
  TimePoint until_{};
};

/// The name of the key that a worker's name begins with; all of it where it came without one.
std::string key_name(const std::string& worker_name);

}  // namespace outrider
