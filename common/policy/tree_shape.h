#pragma once

#include <cstdint>

#include "common/policy/draft_length.h"

namespace outrider {

/// How large token trees are. Which nodes a tree of that many has, the drafter says by its own probabilities, round by
/// round; here is decided what a node must bring to be worth its row and its drafting: as many tokens as the text goes
/// on by in the time that these take (CostModel::tree_draft_price_s).
class TreeShape : public DraftLengthPolicy {
 public:
  /// @param most  nodes of a tree. @param costs  outlive the policy.
  TreeShape(int most, const CostModel& costs) : most_(most), costs_(costs) {}
  DraftChoice choose(const DraftLimits& limits) override;
  void observe(const RoundOutcome& outcome) override;

 private:
  int most_;
  const CostModel& costs_;
  std::int64_t rounds_ = 0;
  FadingMean tokens_{0.95}, seconds_{0.95};
};

}  // namespace outrider
