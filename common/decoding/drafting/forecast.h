#pragma once

#include <array>

#include "common/decoding/drafting/round_cost.h"

namespace outrider {

/// What rounds of a given draft length will bring, from the means of rounds that were measured at other lengths: the
/// closed form tau / (T(g + 1) + g * t_d + wire + other) with tau = 1 + a_1 + a_1 a_2 + ..., less what drafting ahead
/// saves (ahead_terms) if the measured rounds did so. For reports; Estimates, which forget, are for
/// policies.
class Forecast {
 public:
  /// A round of the assistant's drafts, or a plain one.
  void observe(const RoundOutcome& outcome);
  /// Drops the times, which wander with the machine, and keeps what sequences accept.
  void forget_times();
  /// Tokens a round of `length` drafts emits on average. A position that was never tried holds like the one before.
  double tau(int length) const;
  /// T(M) between two measured Ms lies on the line through them, and beyond them on the line through the last two.
  RoundTerms terms(int length) const;

 private:
  struct Mean {
    double sum = 0, count = 0;
    void observe(double y, double weight = 1) { sum += y, count += weight; }
    double value() const { return count > 0 ? sum / count : 0; }
  };
  double verify_s(int rows) const;
  /// The chance that draft i, from 0, holds if those before it do.
  double acceptance(int i) const;

  std::array<Mean, kDraftLengthMax + 2> verify_ = {};  ///< by rows
  std::array<Mean, kDraftLengthMax> acceptance_ = {};  ///< of position i, when those before it held
  Mean draft_per_token_, draft_wire_, other_;
  AheadHits ahead_;
  bool drafted_ = false, all_held_ = false;  ///< the round before
};

}  // namespace outrider
