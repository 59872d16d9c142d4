#include "common/policy/draft_length.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

#include "common/policy/governor.h"

namespace outrider {

int DraftLengthPolicy::extend(const RoundOutcome&, DraftSource, int) { return 0; }

DraftChoice FixedLength::choose(const DraftLimits& limits) { return {.length = std::min(length_, limits.assistant)}; }

DraftChoice HeuristicLength::choose(const DraftLimits& limits) {
  return {.length = std::min(length_, limits.assistant)};
}

void HeuristicLength::observe(const RoundOutcome& outcome) {
  if (outcome.drafted == 0) return;
  length_ = outcome.accepted == outcome.drafted ? std::min(length_ + 2, kDraftLengthMax) : std::max(1, length_ - 1);
}

GoodputLength::GoodputLength(const CostModel& costs, BatchGoodput& batch)
    : costs_(costs),
      batch_(batch),
      // A session's last ten trials of a position: on nano's traces (bare goodput) above 20 and 50, level with 5.
      // Behind others 20: level with 10 and 50 there, and a text in which none holds is known for one.
      survival_(0.9, 0.95, &costs.survival()),
      trees_(0.95, &costs.trees()) {}

DraftChoice GoodputLength::choose(const DraftLimits& limits) {
  const auto held = survival_.of(DraftSource::kAssistant).conditional();
  BatchGoodput::Survives survives_to = {};
  std::partial_sum(held.begin(), held.end(), survives_to.begin(), std::multiplies<>());
  const auto followed = survival_.followed();
  batch_.update(this, survives_to, limits.assistant, limits.drafters, followed);
  DraftChoice best;
  expected_ = {};
  if (!costs_.knows_plain() && !limits.must_draft) return best;
  expected_.others = batch_.others(this, costs_);
  const auto& [company, tokens] = expected_.others;
  // What the others wait for in any case costs nothing more.
  const RoundTerms plain = costs_.terms(DraftSource::kAssistant, 0, 1, company);
  RoundTerms best_terms = plain;
  double best_rate = limits.must_draft ? 0 : (tokens + 1) / costs_.together_s(plain, company, 0);
  for (const DraftSource source : {DraftSource::kAssistant, DraftSource::kNgram, DraftSource::kTable}) {
    const int longest = std::min({limits.of(source), kDraftLengthMax, costs_.rows_most() - company.rows - 1});
    if (longest <= 0) continue;
    const auto a = survival_.of(source).conditional();
    double tau = 1, survives = 1;
    for (int g = 1; g <= longest; ++g) {
      survives *= a[static_cast<std::size_t>(g - 1)];
      tau += survives;
      const double next = a[static_cast<std::size_t>(std::min(g, kDraftLengthMax - 1))];
      const bool assistant = source == DraftSource::kAssistant;
      const int rows_behind = assistant ? static_cast<int>(std::lround(followed.rows)) : 0;
      RoundTerms terms = assistant && limits.ahead ? costs_.terms_ahead(g, tau, survives, next, company)
                                                   : costs_.terms(source, g, tau, company);
      const double own_s = terms.drafting_s() - plain.drafting_s();
      terms.saved_s = assistant && limits.at_hand ? own_s : std::min(terms.saved_s, own_s);
      // Fewer drafts where others follow them.
      RoundTerms with_behind = terms;
      if (rows_behind > 0) with_behind.verify_s = costs_.likely_verify_s(company.rows + g + rows_behind + 1);
      const double rate = (tokens + tau + (assistant ? survives * followed.tokens : 0)) /
                          costs_.together_s(with_behind, company, g + rows_behind) *
                          (company.texts > 0 && g == last_ ? kClearly : 1);
      if (rate <= best_rate) continue;
      best = {.source = source, .length = g};
      best_rate = rate;
      best_terms = terms;
    }
  }
  if (limits.tree && !limits.at_hand && company.texts == 0) {
    if (const auto better = tree(std::min(limits.assistant, kDraftLengthMax), best_rate)) return *better;
  }
  expect(best_terms, best.length);
  if (best.length > 0) last_ = best.length;
  return best;
}

std::optional<DraftChoice> GoodputLength::tree(int most, double rate) {
  const auto held = survival_.of(DraftSource::kAssistant).conditional();
  DraftChoice best;
  RoundTerms best_terms;
  double best_rate = kClearly * rate, kept = 0, survives = 1;
  for (int drafts = 1; drafts <= most; ++drafts) {
    kept += survives *= held[static_cast<std::size_t>(drafts - 1)];
    const double tokens = 1 + kept * trees_.over_chain(drafts);
    const RoundTerms terms = costs_.tree_terms(drafts, tokens);
    const double tree_rate = tokens / terms.seconds();
    if (tree_rate <= best_rate) continue;
    best_rate = tree_rate;
    best_terms = terms;
    best = {.length = drafts, .tree = true};
  }
  if (!best.tree) return std::nullopt;
  best.worth = std::min(1.0, best_rate * costs_.tree_draft_price_s(best.length));
  expect(best_terms, best.length);
  return best;
}

void GoodputLength::expect(const RoundTerms& terms, int length) {
  Company undragged = expected_.others.company;
  RoundTerms in_time = terms;
  in_time.draft_s /= std::exchange(undragged.drag, 1);
  expected_.length = length;
  expected_.terms = terms;
  expected_.load = costs_.load();
  expected_.seconds = costs_.together_s(in_time, undragged, length);
  expected_.draft_s = in_time.draft_s;
  expected_.tells = has_begun_ && undragged.texts > 0 && terms.saved_s <= 0;
}

int GoodputLength::extend(const RoundOutcome& begun, DraftSource source, int length) {
  const auto& [company, others_tokens] = expected_.others;
  const auto a = (begun.drafted > 0 ? survival_.behind(source) : survival_.of(source)).conditional();
  auto [tokens, survives] = survival_.reach(begun);
  RoundTerms terms = expected_.terms;
  // No hope that rows nobody has measured are free: each costs at least what those before it do on average.
  const int rows = company.rows + begun.drafted + 1;
  const double verify_s = costs_.likely_verify_s(rows), row_s = costs_.likely_row_s(rows);
  const auto seconds_with = [&, company = company](int more) {
    terms.verify_s = std::max(costs_.likely_verify_s(rows + more), verify_s + more * row_s);
    return costs_.together_s(terms, company, begun.drafted + more);
  };
  const int longest = std::min({length, kDraftLengthMax - begun.drafted, costs_.rows_most() - rows});
  int best = 0;
  double best_rate = (others_tokens + tokens) / seconds_with(0);
  RoundTerms best_terms = terms;
  for (int more = 1; more <= longest; ++more) {
    tokens += survives *= a[static_cast<std::size_t>(more - 1)];
    // A round that ends behind its drafter's drafts ends in no way that was drafted ahead for.
    if (more == 1) terms.saved_s -= survives * terms.after_all_s;
    const double rate = (others_tokens + tokens) / seconds_with(more);
    if (rate <= best_rate) continue;
    best = more;
    best_rate = rate;
    best_terms = terms;
  }
  if (best == 0) survival_.fade_behind(source);
  const bool tells = expected_.tells && expected_.length == begun.drafted;
  expect(best_terms, begun.drafted + best);
  expected_.tells = tells;
  return best;
}

void GoodputLength::observe(const RoundOutcome& outcome) {
  trees_.observe(survival_.of(outcome.source).conditional(), outcome);
  survival_.observe(outcome);
  // Whoever asked may have taken another length, or not have asked at all.
  const Expected expected = std::exchange(expected_, {});
  has_begun_ = true;
  if (!expected.tells || expected.length != outcome.drafted) return;
  // That forward passes take longer than when the round began is nothing that drafts have done.
  const double longer_s = (costs_.load() / expected.load - 1) * expected.terms.verify_s;
  batch_.observe(expected.seconds + longer_s, expected.draft_s, outcome.round_s);
}

std::unique_ptr<DraftLengthPolicy> make_auto_policy(const CostModel& costs, BatchGoodput& batch) {
  return std::make_unique<Governor>(std::make_unique<GoodputLength>(costs, batch), costs, batch);
}

}  // namespace outrider
