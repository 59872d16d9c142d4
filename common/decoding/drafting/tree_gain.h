#pragma once

#include <array>

#include "common/decoding/drafting/draft_policy.h"
#include "common/decoding/drafting/fading_mean.h"

namespace outrider {

/// How much more of a token tree is kept than of a chain of as many drafts of the assistant's, for `auto` to choose
/// between the two.
///
/// Mean rates cannot say it: a tree puts its second choices where the drafter is in doubt, and those are the places
/// that end chains. So it is counted, of either as a share of what the rates promise a chain (Survival): rounds are
/// chosen where these promise much, and promise a little too much then, to trees as to chains. What was counted of
/// either fades while the other is drafted, so that it is tried again.
class TreeGain {
 public:
  /// As of Survival.
  explicit TreeGain(double keep, const TreeGain* prior = nullptr) : chains_(keep), trees_(keep), prior_(prior) {}
  /// Drafts that are kept of a tree with so many, in those of a chain.
  double over_chain(int drafts) const;
  /// A round of anybody's; those without drafts of the assistant's own say nothing. @param held  as
  /// Survival::conditional() was before it
  void observe(const std::array<double, kDraftLengthMax>& held, const RoundOutcome& outcome);

 private:
  static double lean(const FadingMean& share, double prior);
  double chain_share() const;
  double tree_share() const;

  FadingMean chains_, trees_;
  const TreeGain* prior_;
};

}  // namespace outrider
