#include "common/protocol/wire_choice.h"

#include <algorithm>
#include <cmath>

namespace outrider {

bool WireChoice::observe(double bytes, double wire_s, double round_s) {
  constexpr double kKeep = 0.98;     // 50 rounds
  constexpr double kEnough = 16;     // rounds that say anything of noise
  constexpr double kDeviations = 3;  // of the slope: what is within them may be noise
  // Of a round: what counts, what no longer does; and in seconds, below which a drafter is on this machine or beside
  // it.
  constexpr double kShare = 0.05, kLittle = 0.02, kNear_s = 1e-3;
  n_ = kKeep * n_ + 1;
  x_ = kKeep * x_ + bytes;
  y_ = kKeep * y_ + wire_s;
  xx_ = kKeep * xx_ + bytes * bytes;
  xy_ = kKeep * xy_ + bytes * wire_s;
  yy_ = kKeep * yy_ + wire_s * wire_s;
  const double spread = xx_ - x_ * x_ / n_, along = xy_ - x_ * y_ / n_, waits = yy_ - y_ * y_ / n_;
  if (n_ < kEnough || spread <= 1e-9 * xx_) return false;
  const double slope = along / spread;
  const double error = kDeviations * std::sqrt(std::max(0.0, waits - slope * along) / (n_ - 2) / spread);
  // Half of what exact rows are is spared by int8; of rows in int8 as much as they are would be added.
  const bool exact = form_ == WireForm::kExact;
  const double spared = exact ? bytes / 2 : bytes;
  const bool counts = (slope - error) * spared > std::max(kShare * round_s, kNear_s);
  const bool is_little = (slope + error) * spared < std::max(kLittle * round_s, kNear_s / 2);
  if (exact ? !counts : !is_little) return false;
  form_ = exact ? WireForm::kInt8 : WireForm::kExact;
  return true;
}

}  // namespace outrider
