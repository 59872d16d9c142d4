#pragma once

#include <cstdint>

#include "common/decoding/drafting/draft_length.h"

namespace outrider {

/// Chooses the size of token trees. The drafter picks the nodes of each tree by its own probabilities; this class sets
/// the least worth of a node: as many tokens as the sequence emits in the time of the node's row and drafting
/// (tree_draft_price_s).
class TreeShape : public DraftLengthPolicy {
 public:
  /// @param most  nodes of a tree @param estimates  outlive the policy
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
