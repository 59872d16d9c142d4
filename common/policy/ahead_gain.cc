#include "common/policy/ahead_gain.h"

#include <algorithm>

namespace outrider {

double ahead_gain_s(const RoundTerms& terms, int length, double hit, double left_s) {
  constexpr double kNear = 1e-3;
  if (length <= 0) return 0;
  const double cost = terms.rtt_s < kNear ? terms.draft_s * (length + 1) / length : 0;
  return std::max(0.0, hit * (terms.drafting_s() - left_s) - cost);
}

}  // namespace outrider
