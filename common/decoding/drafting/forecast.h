#pragma once

#include <array>

#include "common/decoding/drafting/round_cost.h"

namespace outrider {

/// Predicts rounds of a given draft length from the means of rounds measured at other lengths: the closed form tau /
/// (T(g + 1) + g * t_d + wire + other) with tau = 1 + a_1 + a_1 a_2 + ..., less the time saved by drafting ahead
/// (ahead_terms) if the measured rounds did so. For reports; policies use Estimates, which fade.
class Forecast {
 public:
  /// Observes a round of the assistant's drafts, or a plain one.
  void observe(const RoundOutcome& outcome);
  /// Drops the times, which vary with the machine, and keeps the acceptance rates.
  void forget_times();
  /// Returns the mean tokens of a round of `length` drafts. An untried position has the acceptance rate of the one
  /// before it.
  double tau(int length) const;
  /// T(M) is linear between measured Ms, and continues the line through the last two beyond them.
  RoundTerms terms(int length) const;

 private:
  struct Mean {
    double sum = 0, count = 0;
    void observe(double y, double weight = 1) { sum += y, count += weight; }
    double value() const { return count > 0 ? sum / count : 0; }
  };
  double verify_s(int rows) const;
  /// Returns the probability that draft i, from 0, is accepted if those before it are.
  double acceptance(int i) const;

  std::array<Mean, kDraftLengthMax + 2> verify_ = {};  ///< by rows
  std::array<Mean, kDraftLengthMax> acceptance_ = {};  ///< of position i, when those before it were accepted
  Mean draft_per_token_, draft_wire_, other_;
  AheadHits ahead_;
  bool drafted_ = false, all_held_ = false;  ///< of the previous round
};

}  // namespace outrider
