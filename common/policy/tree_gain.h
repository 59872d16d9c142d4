#pragma once

#include <array>
#include <vector>

#include "common/policy/draft_policy.h"
#include "common/policy/fading_mean.h"

namespace outrider {

/// What token trees of the assistant's drafts bring, for `auto` to weigh against its chains.
///
/// How far first choices hold is known from any round of the assistant's (Survival). Of a place whose first choice is
/// lost the second is taken to be right in a third of all cases, as it is on nano
/// (docs/policy.md, "Where drafts are lost"), but not more often than the first: that is a tree of fixed shape, the
/// likeliest nodes first. The drafter chooses by its own probabilities, so that what is kept beside first choices is
/// more, or less, by a factor that rounds with trees show. Of first choices it has only how far the drafter's tree goes
/// along them, not how many held: trees are drafted where these seem to hold, and seem so a little too often, for trees
/// as for chains.
class TreeGain {
 public:
  /// As of Survival.
  explicit TreeGain(double keep, const TreeGain* prior = nullptr) : kept_(keep), prior_(prior) {}
  /// Tokens that a round emits on average with a tree of 0, 1, ... `most` drafts.
  /// @param a  the chances that each first choice holds when those before it did: Survival::conditional()
  std::vector<double> tokens(const std::array<double, kDraftLengthMax>& a, int most) const;
  /// What became of a tree. @param a  as before the round
  void observe(const std::array<double, kDraftLengthMax>& a, const RoundOutcome& outcome);

 private:
  double factor() const;

  FadingMean kept_;
  const TreeGain* prior_;
};

}  // namespace outrider
