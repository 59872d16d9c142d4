#pragma once

#include <cstdint>

#include "common/decoding/drafting/draft_length.h"

namespace outrider {

/// How large token trees are. Which nodes a tree of that many has, the drafter says by its own probabilities, round by
/// round; here is decided what a node must bring to be worth its row and its drafting: as many tokens as the sequence
/// goes on by in the time that these take (tree_draft_price_s).
class TreeShape : public DraftLengthPolicy {
 public:
  /// @param most  nodes of a tree. @param estimates  outlive the policy.
  TreeShape(int most, const Estimates& estimates) : most_(most), estimates_(estimates) {}
  DraftPlan choose(const DraftLimits& limits) override;
  void observe(const DraftPlan& plan, const RoundOutcome& outcome) override;

 private:
  int most_;
  const Estimates& estimates_;
  std::int64_t rounds_ = 0;
  FadingMean tokens_{keeps::kTreeRate}, seconds_{keeps::kTreeRate};
};

}  // namespace outrider
