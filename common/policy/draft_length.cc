#include "common/policy/draft_length.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

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

/// How much better another length must seem than the last one, where other texts are there. What differs by less is
/// chance; and texts that change their lengths in turn neither meet in one pass nor find the pace at which one half is
/// drafted for while the other is verified.
constexpr double kStay = 1.02;

GoodputLength::GoodputLength(const CostModel& costs, BatchGoodput& batch)
    : costs_(costs),
      batch_(batch),
      // A session's last ten trials of a position: on nano's traces (bare goodput) above 20 and 50, level with 5.
      survival_{Survival(0.9, &costs.survival(DraftSource::kAssistant)),
                Survival(0.9, &costs.survival(DraftSource::kNgram)),
                Survival(0.9, &costs.survival(DraftSource::kTable))} {}

DraftChoice GoodputLength::choose(const DraftLimits& limits) {
  const auto held = survival_[static_cast<std::size_t>(DraftSource::kAssistant)].conditional();
  BatchGoodput::Survives survives_to = {};
  std::partial_sum(held.begin(), held.end(), survives_to.begin(), std::multiplies<>());
  batch_.update(this, survives_to, limits.assistant, limits.drafters);
  DraftChoice best;
  expected_ = {};
  if (!costs_.knows_plain() && !limits.must_draft) return best;
  const auto [company, tokens] = batch_.others(this, costs_);
  // What the others wait for in any case costs nothing more.
  const RoundTerms plain = costs_.terms(DraftSource::kAssistant, 0, 1, company);
  // The drag is what a round takes longer than without one, whether all texts meet or they take turns: there drafts are
  // made beside a forward pass, and a round in time shows that they keep nobody. A text's first round tells nothing of
  // it: it begins somewhere amid the others' forward pass, which it would wait for without drafts too.
  Company undragged = company;
  undragged.drag = 1;
  const auto expect = [&](RoundTerms terms, int length) {
    terms.draft_s /= company.drag;
    const bool tells = has_begun_ && company.texts > 0 && terms.saved_s <= 0;
    expected_ = {length, tells ? costs_.together_s(terms, undragged, length) : 0, terms.draft_s};
  };
  const double plain_s = costs_.together_s(plain, company, 0);
  expect(plain, 0);
  double best_rate = limits.must_draft ? 0 : (tokens + 1) / plain_s;
  for (const DraftSource source : {DraftSource::kAssistant, DraftSource::kNgram, DraftSource::kTable}) {
    const int longest = std::min({limits.of(source), kDraftLengthMax, costs_.rows_most() - company.rows - 1});
    if (longest <= 0) continue;
    const auto a = survival_[static_cast<std::size_t>(source)].conditional();
    double tau = 1, survives = 1;
    for (int g = 1; g <= longest; ++g) {
      survives *= a[static_cast<std::size_t>(g - 1)];
      tau += survives;
      const double next = a[static_cast<std::size_t>(std::min(g, kDraftLengthMax - 1))];
      const bool assistant = source == DraftSource::kAssistant;
      RoundTerms terms = assistant && limits.ahead ? costs_.terms_ahead(g, tau, survives, next, company)
                                                   : costs_.terms(source, g, tau, company);
      const double own_s = terms.drafting_s() - plain.drafting_s();
      terms.saved_s = assistant && limits.at_hand ? own_s : std::min(terms.saved_s, own_s);
      const double rate =
          (tokens + tau) / costs_.together_s(terms, company, g) * (company.texts > 0 && g == last_ ? kStay : 1);
      if (rate <= best_rate) continue;
      best = {.source = source, .length = g};
      best_rate = rate;
      expect(terms, g);
    }
  }
  if (best.length > 0) last_ = best.length;
  return best;
}

void GoodputLength::observe(const RoundOutcome& outcome) {
  survival_[static_cast<std::size_t>(outcome.source)].observe(outcome.drafted, outcome.accepted);
  // Whoever asked may have taken another length, or not have asked at all.
  const Expected expected = std::exchange(expected_, {});
  has_begun_ = true;
  if (expected.seconds > 0 && expected.length == outcome.drafted)
    batch_.observe(expected.seconds, expected.draft_s, outcome.round_s);
}

std::unique_ptr<DraftLengthPolicy> make_auto_policy(const CostModel& costs, BatchGoodput& batch) {
  return std::make_unique<Governor>(std::make_unique<GoodputLength>(costs, batch), costs, batch);
}

}  // namespace outrider
