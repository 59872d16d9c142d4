#pragma once

#include <deque>
#include <memory>
#include <utility>

#include "common/decoding/drafting/batch_goodput.h"
#include "common/decoding/drafting/draft_length.h"

namespace outrider {

/// Keeps any policy from making a session slower than plain decoding: at most 2 % over any 512 tokens, which means over
/// any shortest run of rounds that emits at least 512.
///
/// Unit: T, the time of a plain round. A drafting round's *loss* is its time minus the time of plain decoding for its
/// tokens, over T; a gain is a negative loss, and a plain round has loss 0. The *drawdown* is the largest sum of losses
/// over the last k rounds, for any k whose rounds emit fewer than 512 tokens. The governor lets a round draft only if
/// drawdown + (predicted loss if no draft is accepted) <= kAllowance, and shortens the draft until that holds.
///
/// Proof of the bound. Let X be the most by which a round's loss exceeds that prediction. Take a shortest run of rounds
/// that emits at least 512 tokens, and the last round in it that drafts. The rounds of the run before that one emit
/// fewer than 512 tokens, so their losses were part of the drawdown: together with the round's own loss they sum to
/// kAllowance + X at most. The rounds after it are plain and have loss 0. So the run loses at most kAllowance + X, and
/// 2 % of 512 is 10.24: with kAllowance 7, X <= 3.24 suffices. A longer run splits into such runs and a rest.
/// Assumptions: T changes little during the run (a plain round measures it every 256 tokens), and X <= 3.24. The wait
/// for drafts cannot exceed the prediction, because choose() bounds it (patience_s), and extend() adds rows after the
/// actual wait. The forward pass remains: X <= 3.24 means that T(g + 1) does not jump by more than 3.24 T between two
/// rounds; after a jump the prediction carries the same factor until rounds show otherwise. Forgetting can cause such a
/// jump: after some 2000 passes without so many rows (VerifyTime) their cost is unknown. Delays that affect plain
/// rounds as well (the machine is busy) are not charged, see loss().
class Governor : public DraftLengthPolicy {
 public:
  /// @param estimates, batch  outlive the policy
  Governor(std::unique_ptr<DraftLengthPolicy> inner, const Estimates& estimates, BatchGoodput& batch)
      : inner_(std::move(inner)), estimates_(estimates), batch_(batch) {}

  DraftPlan choose(const DraftLimits& limits) override;
  int extend(DraftPlan& plan, const RoundOutcome& begun, DraftSource source, int length) override;
  void observe(const DraftPlan& plan, const RoundOutcome& outcome) override;

 private:
  static constexpr double kAllowance = 7;
  static constexpr int kWindow = 512;                    ///< tokens
  static constexpr int kParkMin = 8, kParkMax = 128;     ///< tokens
  static constexpr int kProbeMin = 64, kProbeMax = 512;  ///< tokens
  static constexpr int kProbeRounds = 4;                 ///< rounds with drafts; the first may only fetch K/V
  static constexpr int kPlainEvery = 256;                ///< tokens between two measurements of T

  /// The last rounds, which together emitted fewer than kWindow tokens.
  class Account {
   public:
    void add(int tokens, double loss);
    /// Returns the largest sum of losses over consecutive rounds up to the last.
    double drawdown() const { return drawdown_; }

   private:
    struct Spent {
      int tokens;
      double loss;
    };
    std::deque<Spent> recent_;  ///< oldest first
    int tokens_ = 0;
    double drawdown_ = 0;
  };
  /// A trial of drafts that the inner policy does not want.
  struct Probe {
    int tokens = kProbeMin;  ///< plain tokens before it; doubles with every probe that loses
    int rounds_left = 0;     ///< rounds left of the current probe
    double loss = 0;
  };

  /// Terms of a round of this length after one whose drafts were all accepted, which has the most K/V to send.
  RoundTerms terms(const DraftLimits& limits, DraftSource source, int length) const;
  /// Returns the loss, in T, of such a round if no draft is accepted.
  double worst_loss(const RoundTerms& terms) const;
  double loss(const DraftPlan& plan, const RoundOutcome& outcome) const;

  std::unique_ptr<DraftLengthPolicy> inner_;
  const Estimates& estimates_;
  BatchGoodput& batch_;
  Account account_;
  double surprise_ = 1;         ///< recent ratio of actual to predicted pass times with drafts
  bool parked_ = false;         ///< the allowance did not cover the inner policy's plan
  bool parked_before_ = false;  ///< parked since half of the allowance was left
  int park_tokens_ = kParkMin;  ///< plain tokens before the next try; doubles with every try that loses
  int tokens_undrafted_ = 0, tokens_since_plain_ = 0;
  Probe probe_;
};

}  // namespace outrider
