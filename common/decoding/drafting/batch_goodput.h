#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

#include "common/decoding/drafting/round_cost.h"

namespace outrider {

/// Advantage that another choice must promise when there are other sequences. Smaller differences are noise, and
/// sequences that change their lengths in turn neither meet in one pass nor settle into alternating halves, of which
/// one drafts while the other verifies.
inline constexpr double kClearly = 1.02;

/// Plans the drafts of sequences that share a verifier's forward passes (goodput over a batch; SmartSpec, Liu et al.
/// 2024). Every sequence waits for all verified rows: N sequences that meet emit
///
///   N + the sum of their drafts' acceptance probabilities
///
/// tokens in T(N + G) + wire + drafting + other seconds, where the G drafts are the most probable ones, or as many in
/// two halves (together()). The plan is the G with the most tokens per second, possibly 0; a sequence with better
/// acceptance gets more drafts.
class BatchGoodput {
 public:
  /// Key of a sequence: the address of its policy.
  using Key = const void*;
  /// survives[i]: probability that the first i + 1 drafts are accepted.
  using Survives = std::array<double, kDraftLengthMax>;

  /// Registers a sequence at the start of its round.
  /// @param most  limit of its drafts
  /// @param drafters  number that draft for all sequences
  /// @param followed  looked-up drafts that follow its own
  void update(Key key, const Survives& survives, int most, int drafters, const SourceSurvival::Followed& followed = {});
  void forget(Key key);

  /// @param key  a registered sequence
  Others others(Key key, const Estimates& estimates);

  /// Adds to the allowance for probes, in tokens. It is shared, so that every sequence has an acceptance rate to start
  /// from, and short answers do not pay for it one by one.
  void earn(int tokens);
  /// Spends the cost of a probe, if the allowance covers it. @param tokens  cost per sequence, as all of them wait
  /// @return false: not covered, nothing spent
  bool spend(double tokens);
  /// Charges a probe's excess cost at once: the next probe waits until it is earned again.
  void owe(double tokens) { allowance_ -= std::max(0.0, tokens); }

 private:
  struct Sequence {
    Key key = nullptr;
    Survives survives = {};
    int most = 0;
    SourceSurvival::Followed followed = {};
    int planned = 0;  ///< number of drafts
  };
  /// A possible draft of a sequence.
  struct Place {
    double chance;  ///< probability of acceptance
    int depth;
  };
  struct Plan {
    int drafts = 0;
    double tokens = 0;  ///< per round of all sequences
    double rate = 0;
  };
  /// @param places  the most probable first
  Plan best(const Estimates& estimates, const std::vector<Place>& places) const;
  void plan(const Estimates& estimates);
  /// Plans four times per round of all sequences: probabilities change slowly, and a plan inspects every draft of every
  /// sequence.
  std::size_t updates_a_plan() const { return (sequences_.size() + 3) / 4; }

  std::vector<Sequence> sequences_;  ///< in the order of their first rounds
  int drafters_ = 1;
  std::size_t updates_ = 0;  ///< since the last plan
  bool planned_ = false;
  Plan plan_;
  double allowance_ = 0;
};

}  // namespace outrider
