#include "common/decoding/drafting/round_cost.h"

#include <algorithm>

namespace outrider {

RoundTerms round_terms(const Estimates& estimates, DraftSource source, int length, double tau,
                       const OtherWork& other_work) {
  const int rows = other_work.rows + length + 1;
  RoundTerms terms{.verify_s = other_work.sequences > 0 ? estimates.likely_verify_s(rows) : estimates.verify_s(rows),
                   .other_s = estimates.other_s.value()};
  // All sequences wait for the last draft that an assistant makes for any of them. N-grams cost no time.
  const int own = is_looked_up(source) ? 0 : length, drafts = other_work.drafts + own;
  if (drafts == 0) return terms;
  const DraftCost& cost = estimates.drafts[index_of_made(source)];
  // A sequence that asks during a pass for others joins the next pass.
  const int joins = std::min(other_work.sequences + 1, drafts) > other_work.drafters ? 1 : 0;
  terms.passes_s = cost.pass_s.intercept() * (cost.passes(std::max(other_work.longest, own)) + joins);
  terms.draft_s = terms.passes_s + cost.pass_s.slope() * drafts / other_work.drafters;
  terms.rtt_s = cost.wire_s.intercept();
  terms.bytes = cost.bytes.intercept() + cost.bytes.slope() * tau;
  terms.s_per_byte = cost.wire_s.slope();
  return terms;
}

namespace {

/// Returns the share of tokens that a round loses when its drafts were made ahead, from an older state; 0 until enough
/// rounds were seen.
double lost_ahead(const Estimates& estimates) {
  constexpr double kEnough = 20;
  if (std::min(estimates.tokens_asked.weight(), estimates.tokens_ahead.weight()) < kEnough) return 0;
  return std::max(0.0, 1 - estimates.tokens_ahead.value() / estimates.tokens_asked.value());
}

}  // namespace

RoundTerms ahead_terms(const Estimates& estimates, int length, double tau, double survives, double next,
                       const OtherWork& other_work) {
  RoundTerms terms = round_terms(estimates, DraftSource::kAssistant, length, tau, other_work);
  const AheadHits& hits = estimates.ahead;
  const double left_s = hits.wait_s() + lost_ahead(estimates) * terms.seconds();
  terms.saved_s = std::max(0.0, hits.chance(survives, next) * (terms.drafting_s() - left_s));
  if (terms.saved_s > 0) terms.after_all_s = hits.chance(1, next) * (terms.drafting_s() - left_s);
  return terms;
}

bool ahead_pays(const Estimates& estimates, int length) {
  const auto a = estimates.survival.of(DraftSource::kAssistant).conditional();
  double tau = 1, survives = 1;
  for (int i = 0; i < length; ++i) tau += survives *= a[static_cast<std::size_t>(i)];
  const double next = a[static_cast<std::size_t>(std::min(length, kDraftLengthMax - 1))];
  return ahead_terms(estimates, length, tau, survives, next).saved_s > 0;
}

RoundTerms tree_terms(const Estimates& estimates, int drafts, double tau) {
  RoundTerms terms = round_terms(estimates, DraftSource::kAssistant, drafts, tau);
  if (!estimates.tree_draft_s.empty()) terms.draft_s = drafts * estimates.tree_draft_s.value();
  return terms;
}

double tree_draft_price_s(const Estimates& estimates, int drafts) {
  const int rows = estimates.others() + drafts + 1;
  return estimates.lately.row_s(rows, estimates.lately.optimistic_s(rows)) +
         tree_terms(estimates, drafts, 1).draft_s / drafts;
}

Together together(const Estimates& estimates, const RoundTerms& terms, const OtherWork& other_work, int length) {
  if (other_work.sequences == 0) return {.seconds = terms.seconds()};
  // The halves must be clearly faster: while they take turns nothing shows how fast all would be together.
  constexpr double kClearlyFaster = 0.9;
  RoundTerms half = terms;
  half.verify_s = estimates.likely_verify_s((other_work.rows + length + 2) / 2);  // rounded up
  half.draft_s = (terms.draft_s + terms.passes_s) / 2;
  // The drafts of one half are made beside the pass of the other, and each takes from the other's speed.
  const auto [less_s, more_s] = std::minmax(half.verify_s, half.draft_s);
  const double turn_s = more_s + (estimates.slowdown_beside_passes() - 1) * less_s,
               halves_s = std::max(half.seconds(), 2 * turn_s);
  if (kClearlyFaster * terms.seconds() <= halves_s) return {.seconds = terms.seconds()};
  return {.halves = true, .seconds = halves_s};
}

}  // namespace outrider
