#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "common/decoding/drafting/round_cost.h"

namespace outrider {

/// How much better another choice must seem where other sequences are there. What differs by less is chance; and
/// sequences that change their lengths in turn neither meet in one pass nor find the pace at which one half is drafted
/// for while the other is verified.
inline constexpr double kClearly = 1.02;

/// The sequences whose rounds share a verifier's forward passes, and how many drafts pay for all of them together
/// (goodput over a batch; SmartSpec, Liu et al. 2024). Whatever one sequence has verified, all wait for: N sequences
/// that meet emit
///
///   N + the sum of the chances that their drafts hold
///
/// tokens in T(N + G) + wire + drafting + other seconds, where the G drafts go to the likeliest places. The assistant
/// drafts for half of the sequences in one pass, so drafting takes two passes for each draft of the sequence with the
/// most, and the G rows of these passes. The plan is the G with the most tokens per second, none included; of two
/// sequences the one whose drafts hold gets more.
class BatchGoodput {
 public:
  /// Keys of sequences, which are the addresses of their policies.
  using Key = const void*;
  /// survives[i]: the chance that the first i + 1 drafts hold.
  using Survives = std::array<double, kDraftLengthMax>;

  /// A sequence as it begins a round. @param most  drafts that it may have. @param drafters  that draft for all of
  /// them.
  /// @param followed  what is looked up behind its drafts
  void update(Key text, const Survives& survives, int most, int drafters,
              const SourceSurvival::Followed& followed = {});
  void forget(Key text);

  /// @param text  one that was updated.
  Others others(Key text, const Estimates& estimates);

  /// A round that without any contention was to take `expected_s` took `seconds`; the drafts of all sequences are made
  /// in `draft_s`. Sequences that do not meet after all wait for each other's forward passes, and cores that draft do
  /// not verify.
  void observe(double expected_s, double draft_s, double seconds);

  /// The allowance for probes, in tokens: the sequences earn it together, so that each has an acceptance to go by, and
  /// short answers do not pay for it one by one.
  void earn(int tokens);
  /// @param tokens  that a probe costs each sequence, as all wait for it. @return whether there was as much, which is
  /// spent
  ///        then.
  bool spend(double tokens);
  /// Takes what a probe has cost beyond that, at once: the next one waits until it is earned again.
  void owe(double tokens) { allowance_ -= std::max(0.0, tokens); }

 private:
  struct Text {
    Key key = nullptr;
    Survives survives = {};
    int most = 0;
    SourceSurvival::Followed followed = {};
    int planned = 0;  ///< drafts
  };
  /// A draft that a sequence may have.
  struct Place {
    double chance;  ///< that it holds
    int depth;
  };
  struct Plan {
    int drafts = 0;
    double tokens = 0;  ///< of a round of all sequences
    double rate = 0;
  };
  /// @param places  the likeliest first
  Plan best(const Estimates& estimates, const std::vector<Place>& places, double contention) const;
  void plan(const Estimates& estimates);
  /// Plans are made four times in a round of all sequences: chances move slowly, and a plan looks at every draft of
  /// every text.
  std::size_t updates_a_plan() const { return (texts_.size() + 3) / 4; }
  double contention() const;
  /// Sequences that the contention keeps from drafting learn nothing of it any more, and it may be of another time: it
  /// is high until sequences that came one by one have found how to share their passes. So now and then all of them
  /// draft for some rounds as though there were none, and it is learned anew; less and less often while that does not
  /// help.
  /// @param contended  they are kept plain, and without the contention drafts would clearly pay
  void try_without_contention(bool contended);

  std::vector<Text> texts_;  ///< in the order of their first rounds
  int drafters_ = 1;
  std::size_t updates_ = 0;  ///< since the plan was made
  bool planned_ = false;
  Plan plan_;
  FadingMean contention_{keeps::kContention};
  static constexpr double kTryWaitMin = 4, kTryWaitMax = 64;
  /// In rounds of all sequences, as these.
  struct Try {
    double left = 0;            ///< of the one that runs
    double contended = 0;       ///< since the contention has kept all of them plain
    double drafting = 0;        ///< since they draft, in no try
    double wait = kTryWaitMin;  ///< until the next one
  } try_;
  double allowance_ = 0;
};

}  // namespace outrider
