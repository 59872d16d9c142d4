#pragma once

#include "common/decoding/drafting/batch_goodput.h"
#include "common/decoding/drafting/draft_length.h"

namespace outrider {

/// Plans each round of a sequence from the current estimates: the plan with the most expected tokens per second over
/// all sequences of a verifier (goodput; SmartSpec, Liu et al. 2024), of all sources and lengths, plain decoding and
/// trees.
class GoodputLength : public DraftLengthPolicy {
 public:
  /// @param estimates, batch  outlive the policy
  GoodputLength(const Estimates& estimates, BatchGoodput& batch)
      : estimates_(estimates), batch_(batch), own_(estimates) {}
  ~GoodputLength() override { batch_.forget(this); }
  GoodputLength(const GoodputLength&) = delete;
  GoodputLength& operator=(const GoodputLength&) = delete;
  DraftPlan choose(const DraftLimits& limits) override;
  int extend(DraftPlan& plan, const RoundOutcome& begun, DraftSource source, int length) override;
  void observe(const DraftPlan&, const RoundOutcome& outcome) override { own_.observe(outcome); }

 private:
  const Estimates& estimates_;
  BatchGoodput& batch_;
  SequenceEstimates own_;
};

}  // namespace outrider
