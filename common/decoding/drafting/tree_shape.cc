#include "common/decoding/drafting/tree_shape.h"

#include <algorithm>

namespace outrider {
namespace {

/// Rounds between trees of half the size, so that forward passes of different sizes are seen.
constexpr std::int64_t kProbeEvery = 16;

}  // namespace

DraftPlan TreeShape::choose(const DraftLimits& limits) {
  const int most = std::min(most_, limits.assistant);
  const bool probe = ++rounds_ % kProbeEvery == 0;
  const double rate = seconds_.value() > 0 ? tokens_.value() / seconds_.value() : 0;
  const double price_s = most > 0 ? tree_draft_price_s(estimates_, most) : 0;
  return {.length = probe ? (most + 1) / 2 : most, .tree = true, .worth = std::min(1.0, rate * price_s)};
}

void TreeShape::observe(const DraftPlan& /*plan*/, const RoundOutcome& outcome) {
  tokens_.observe(outcome.accepted + 1);
  seconds_.observe(outcome.round_s);
}

}  // namespace outrider
