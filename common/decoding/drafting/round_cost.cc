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
  const double halves = std::min(other_work.sequences + 1, drafts) > other_work.drafters ? 2 : 1;
  terms.draft_s = (cost.pass_s.intercept() * halves * cost.passes(std::max(other_work.longest, own)) +
                   cost.pass_s.slope() * drafts / other_work.drafters) *
                  other_work.contention;
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

double together_s(const Estimates& estimates, const RoundTerms& terms, const OtherWork& other_work, int length) {
  if (other_work.sequences == 0) return terms.seconds();
  const double half_s = estimates.likely_verify_s((other_work.rows + length + 2) / 2);  // rounded up
  // The verifier waits for the second half if that saves more pass time than the drafts take (batch_window.h): of N
  // sequences with R rows, each half that waits for the other gains 2 T(R / 2) - T(R) and loses the drafting time.
  if (2 * half_s - terms.verify_s > terms.drafting_s() - terms.draft_s * (1 - 1 / other_work.contention))
    return terms.seconds();
  RoundTerms half = terms;
  half.verify_s = half_s;
  half.draft_s = terms.draft_s / 2;
  return std::max({half.seconds(), 2 * half_s, terms.draft_s});
}

}  // namespace outrider
