#pragma once

#include <cstdint>

#include "common/policy/draft_length.h"

namespace outrider {

/// How large token trees are. Which nodes a tree of that many has, the drafter says by its own probabilities, round by
/// round; here is decided what a node must bring to be worth its row: as many tokens as the text goes on by in the time
/// that one more row takes, so that tokens per second are the most that the measured forward passes allow.
class TreeShape : public DraftLengthPolicy {
 public:
  /// @param most  nodes of a tree
  explicit TreeShape(int most) : most_(most) {}
  DraftChoice choose(const DraftLimits& limits) override;
  void observe(const RoundOutcome& outcome) override;

 private:
  int most_;
  std::int64_t rounds_ = 0;
  FadingLine verify_;  ///< seconds of a forward pass by its rows
  FadingMean tokens_{0.95}, seconds_{0.95};
};

}  // namespace outrider
