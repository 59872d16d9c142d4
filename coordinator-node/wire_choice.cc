#include "coordinator-node/wire_choice.h"

#include <algorithm>
#include <cmath>

namespace outrider {

bool WireChoice::observe(double bytes, double wire_s, double round_s) {
  constexpr double kKeep = 0.98;     // 50 rounds
  constexpr double kEnough = 16;     // rounds that show the noise
  constexpr double kDeviations = 3;  // of the slope: anything smaller may be noise
  // Shares of a round that count, and that no longer do; and the seconds below which a drafter is on this machine or
  // beside it.
  constexpr double kShare = 0.05, kLittle = 0.02, kNear_s = 1e-3;
  sums_.observe(bytes, wire_s, kKeep);
  const double spread = sums_.variance_x(), along = sums_.covariance();
  if (sums_.n < kEnough || spread <= 1e-9 * sums_.xx) return false;
  const double slope = along / spread;
  const double residual = std::max(0.0, sums_.variance_y() - slope * along);
  const double error = kDeviations * std::sqrt(residual / (sums_.n - 2) / spread);
  // int8 saves half of exact rows' bytes; exact rows would add as many bytes as int8 rows have.
  const bool exact = form_ == WireForm::kExact;
  const double spared = exact ? bytes / 2 : bytes;
  const bool counts = (slope - error) * spared > std::max(kShare * round_s, kNear_s);
  const bool is_small = (slope + error) * spared < std::max(kLittle * round_s, kNear_s / 2);
  if (exact ? !counts : !is_small) return false;
  form_ = exact ? WireForm::kInt8 : WireForm::kExact;
  return true;
}

}  // namespace outrider
