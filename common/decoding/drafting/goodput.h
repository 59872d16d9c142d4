#pragma once

#include <memory>

#include "common/decoding/drafting/batch_goodput.h"
#include "common/decoding/drafting/draft_length.h"

namespace outrider {

/// All that a plan follows from.
struct Known {
  const Estimates& estimates;    ///< of all sequences of the verifier
  const SequenceEstimates& own;  ///< of this one
  Others others = {};            ///< what the others do
};

/// (9) The plan with the most expected tokens per second of all sequences of a verifier (goodput; SmartSpec, Liu et al.
/// 2024), over all sources, every length, plain decoding and trees. Pure.
DraftPlan plan_round(const Known& known, const DraftLimits& limits);

/// (10) How many of `length` drafts that are looked up behind those of `begun` are worth their rows: one row after the
/// other, as long as the goodput rises. Pure but for `plan`, which expects afterwards what the round has become.
int plan_extension(const Known& known, DraftPlan& plan, const RoundOutcome& begun, DraftSource source, int length);

/// Plans each round of a sequence by what is known then.
class GoodputLength : public DraftLengthPolicy {
 public:
  /// @param estimates, batch  outlive the policy.
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

/// What `--draft-length auto` means: goodput under the governor. @param estimates, batch  outlive the policy.
std::unique_ptr<DraftLengthPolicy> make_auto_policy(const Estimates& estimates, BatchGoodput& batch);

}  // namespace outrider
