#pragma once

#include <deque>
#include <memory>
#include <utility>

#include "common/decoding/drafting/batch_goodput.h"
#include "common/decoding/drafting/draft_length.h"

namespace outrider {

/// Keeps any policy from making a session slower than plain decoding: at most 2 % over any 512 tokens, that is over
/// any shortest run of rounds that emits at least 512.
///
/// Unit: T, the time of a plain round. A drafting round's *loss* is the time it took less the time plain decoding
/// needs for its tokens, over T; a gain is a negative loss, and a plain round loses nothing. The *drawdown* is the
/// largest sum of losses over the last k rounds, for any k whose rounds emit fewer than 512 tokens. The governor lets a
/// round draft only if drawdown + (loss predicted for the case that no draft holds) <= kAllowance, and shortens the
/// draft until that is so.
///
/// Why the bound holds. Let X be the most by which a round's loss exceeds that prediction. Take a shortest run of
/// rounds that emits at least 512 tokens, and the last round in it that drafts. The rounds of the run before that one
/// emit fewer than 512 tokens, so their losses were part of the drawdown: with the round's own they sum to kAllowance +
/// X at most. The rounds after it are plain and lose nothing. So the run loses at most kAllowance + X, and 2 % of 512
/// is 10.24: with kAllowance 7, X <= 3.24 suffices. A longer run splits into such runs and a rest. What it assumes: T
/// is known to within what it moves during the run (every 256 tokens one plain round measures it again), and X <= 3.24.
/// The wait for drafts cannot exceed the prediction, because choose() gives it an end (patience_s), and extend() adds
/// rows to the wait that it was. What is left is the forward pass: X <= 3.24 says that T(g + 1) does not jump by more
/// than 3.24 T between one round and the next; after a jump the prediction carries the same factor until rounds show
/// otherwise. Forgetting may be such a jump: after some 2000 passes without so many rows (VerifyTime) nothing says any
/// more that they are dear. What hits plain rounds as well (the machine busy elsewhere) is not charged, see loss().
class Governor : public DraftLengthPolicy {
 public:
  /// @param estimates, batch  outlive the policy.
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
  static constexpr int kProbeRounds = 4;                 ///< with drafts; but the first may only fetch K/V
  static constexpr int kPlainEvery = 256;                ///< tokens between two measurements of T

  /// The last rounds, which emitted fewer than kWindow tokens.
  class Account {
   public:
    void add(int tokens, double loss);
    /// The largest loss of so many of them in a row up to the last.
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
  /// Drafts although the inner policy wants none.
  struct Probe {
    int tokens = kProbeMin;  ///< plain ones before it; doubles with every probe that loses
    int rounds_left = 0;     ///< of the one that runs
    double loss = 0;
  };

  /// A round of this length, which follows one where every draft held: that brings the most K/V along.
  RoundTerms terms(const DraftLimits& limits, DraftSource source, int length) const;
  /// The loss, in T, of such a round of which no draft holds.
  double worst_loss(const RoundTerms& terms) const;
  double loss(const DraftPlan& plan, const RoundOutcome& outcome) const;

  std::unique_ptr<DraftLengthPolicy> inner_;
  const Estimates& estimates_;
  BatchGoodput& batch_;
  Account account_;
  double surprise_ = 1;         ///< how much longer than predicted forward passes of drafts took lately
  bool parked_ = false;         ///< the allowance did not cover the inner policy's wish
  bool parked_before_ = false;  ///< since half of the allowance was left
  int park_tokens_ = kParkMin;  ///< plain tokens before drafts are tried again; doubles with every try that loses
  int tokens_undrafted_ = 0, tokens_since_plain_ = 0;
  Probe probe_;
};

}  // namespace outrider
