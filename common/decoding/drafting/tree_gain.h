#pragma once

#include <array>

#include "common/decoding/drafting/draft_policy.h"
#include "common/decoding/drafting/fading.h"

namespace outrider {

/// Ratio of kept drafts of a token tree to those of a chain of equal size from the assistant, for `auto` to choose
/// between the two.
///
/// Mean rates cannot predict it: a tree puts its second choices where the drafter is in doubt, which is where chains
/// end. So both are counted, as a share of the rates' prediction for a chain (Survival): rounds are chosen when these
/// predict much, which overrates trees as much as chains. The counts of either fade while the other is drafted, so that
/// it is tried again.
class TreeGain {
 public:
  /// See Survival.
  explicit TreeGain(double keep, const TreeGain* prior = nullptr) : chains_(keep), trees_(keep), prior_(prior) {}
  /// Returns the kept drafts of a tree of this size, relative to a chain's.
  double over_chain(int drafts) const;
  /// Observes a round of any sequence; rounds without the assistant's own drafts are ignored.
  /// @param conditional  Survival::conditional() before the round
  void observe(const std::array<double, kDraftLengthMax>& conditional, const RoundOutcome& outcome);

 private:
  static double with_prior(const FadingMean& share, double prior);
  double chain_share() const;
  double tree_share() const;

  FadingMean chains_, trees_;
  const TreeGain* prior_;
};

}  // namespace outrider
