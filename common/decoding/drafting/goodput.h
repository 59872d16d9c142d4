#pragma once

#include <memory>

#include "common/decoding/drafting/batch_goodput.h"
#include "common/decoding/drafting/draft_length.h"

namespace outrider {

/// Inputs of a plan.
struct Known {
  const Estimates& estimates;    ///< of all sequences of the verifier
  const SequenceEstimates& own;  ///< of this one
  Others others = {};            ///< the other sequences' work
};

/// (9) Returns the plan with the most expected tokens per second over all sequences of a verifier (goodput; SmartSpec,
/// Liu et al. 2024), over all sources, lengths, plain decoding and trees. Pure.
DraftPlan plan_round(const Known& known, const DraftLimits& limits);

/// (10) Returns how many of `length` looked-up drafts after those of `begun` are worth their rows: rows are added while
/// the goodput rises. Pure, except that it updates the expectation in `plan`.
int plan_extension(const Known& known, DraftPlan& plan, const RoundOutcome& begun, DraftSource source, int length);

/// Plans each round of a sequence from the current estimates.
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
  void observe(const DraftPlan& plan, const RoundOutcome& outcome) override;

 private:
  const Estimates& estimates_;
  BatchGoodput& batch_;
  SequenceEstimates own_;
};

/// Makes the policy of `--draft-length auto`: goodput under the governor. @param estimates, batch  outlive the policy
std::unique_ptr<DraftLengthPolicy> make_auto_policy(const Estimates& estimates, BatchGoodput& batch);

}  // namespace outrider
