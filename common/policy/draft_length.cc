#include "common/policy/draft_length.h"

#include <algorithm>

#include "common/policy/governor.h"

namespace outrider {

DraftChoice FixedLength::choose(const DraftLimits& limits) { return {.length = std::min(length_, limits.assistant)}; }

DraftChoice HeuristicLength::choose(const DraftLimits& limits) {
  return {.length = std::min(length_, limits.assistant)};
}

void HeuristicLength::observe(const RoundOutcome& outcome) {
  if (outcome.drafted == 0) return;
  length_ = outcome.accepted == outcome.drafted ? std::min(length_ + 2, kDraftLengthMax) : std::max(1, length_ - 1);
}

GoodputLength::GoodputLength(const CostModel& costs)
    : costs_(costs),
      // A session's last ten trials of a position: on nano's traces (bare goodput) above 20 and 50, level with 5.
      survival_{Survival(0.9, &costs.survival(DraftSource::kAssistant)),
                Survival(0.9, &costs.survival(DraftSource::kNgram))} {}

DraftChoice GoodputLength::choose(const DraftLimits& limits) {
  DraftChoice best;
  if (!costs_.knows_plain() && !limits.must_draft) return best;
  double best_rate = limits.must_draft || costs_.plain_s() <= 0 ? 0 : 1 / costs_.plain_s();
  for (const DraftSource source : {DraftSource::kAssistant, DraftSource::kNgram}) {
    const int longest = std::min(limits.of(source), kDraftLengthMax);
    if (longest <= 0) continue;
    const auto a = survival_[static_cast<std::size_t>(source)].conditional();
    double tau = 1, survives = 1;
    for (int g = 1; g <= longest; ++g) {
      survives *= a[static_cast<std::size_t>(g - 1)];
      tau += survives;
      const double next = a[static_cast<std::size_t>(std::min(g, kDraftLengthMax - 1))];
      const bool assistant = source == DraftSource::kAssistant;
      RoundTerms terms =
          assistant && limits.ahead ? costs_.terms_ahead(g, tau, survives, next) : costs_.terms(source, g, tau);
      if (assistant && limits.at_hand) terms.saved_s = terms.drafting_s();
      const double rate = tokens_per_second(tau, terms);
      if (rate > best_rate) {
        best = {.source = source, .length = g};
        best_rate = rate;
      }
    }
  }
  return best;
}

void GoodputLength::observe(const RoundOutcome& outcome) {
  survival_[static_cast<std::size_t>(outcome.source)].observe(outcome.drafted, outcome.accepted);
}

std::unique_ptr<DraftLengthPolicy> make_auto_policy(const CostModel& costs) {
  return std::make_unique<Governor>(std::make_unique<GoodputLength>(costs), costs);
}

}  // namespace outrider
