#include "common/decoding/drafting/estimates.h"

#include <algorithm>
#include <cmath>

#include "common/base/check.h"

namespace outrider {

void AheadHits::observe(bool all_held, bool hit, double wait_s) {
  (all_held ? after_all_ : after_loss_).observe(hit ? 1 : 0);
  if (hit) wait_.observe(wait_s);
}

double AheadHits::chance(double survives, double next) const {
  const double after_all = after_all_.empty() ? next : after_all_.value();
  return survives * after_all + (1 - survives) * after_loss_.value();
}

void SharedCores::on_pass(double began_s, double ended_s) {
  passes_[next_] = {began_s, ended_s};
  next_ = (next_ + 1) % passes_.size();
}

double SharedCores::beside_passes(double began_s, double ended_s) const {
  if (ended_s <= began_s) return 0;
  double beside_s = 0;
  for (const Interval& pass : passes_)
    beside_s += std::max(0.0, std::min(ended_s, pass.ended_s) - std::max(began_s, pass.began_s));
  return std::min(1.0, beside_s / (ended_s - began_s));
}

void SharedCores::observe(double beside, double pass_s) {
  if (beside < 0.25) slowdown_.observe_apart(pass_s);
  if (beside <= 0.5) return;
  // The part that was not beside a forward pass took as long as it does otherwise.
  const FadingMean& apart_s = slowdown_.apart();
  slowdown_.observe_beside(apart_s.empty() ? pass_s : (pass_s - (1 - beside) * apart_s.value()) / beside);
}

double Estimates::slowdown_beside_passes() const {
  constexpr double kNear_s = 1e-3;  // of a drafter on another host: more
  return shared_cores.slowdown(drafts[0].wire_s.intercept() < kNear_s ? 2 : 1);
}

int Estimates::others() const { return static_cast<int>(std::lround(other_rows.value())); }

void Estimates::observe_pass(const RoundOutcome& outcome, double ended_s) {
  const int rows = std::max(outcome.batch_rows, outcome.drafted + 1);
  const double seconds = outcome.verify_s;
  other_rows.observe(rows - outcome.drafted - 1);
  if (outcome.pass != 0 && outcome.pass == last_pass) return;
  last_pass = outcome.pass;
  shared_cores.on_pass(ended_s - seconds, ended_s);
  lately.observe(rows, seconds);
  const double usual_s = usual.likely(rows);
  if (!usual.knows(rows) || usual_s <= 0) return usual.observe(rows, seconds / load);
  // Another number of rows tells how long so many take, about as many rows tell of the load.
  if (16 * std::abs(rows - last_rows) <= rows + last_rows)
    load = std::clamp((load + seconds / usual_s) / 2, 0.1, 10.0);
  last_rows = rows;
  // The load lags by one pass, so a single pass must not change `usual` much.
  usual.observe(rows, std::clamp(seconds / load, usual_s / 1.1, usual_s * 1.1));
}

void Estimates::observe(const RoundOutcome& outcome, double ended_s) {
  CHECK(outcome.drafted >= 0 && outcome.accepted >= 0 && outcome.accepted <= outcome.drafted, "{} of {}",
        outcome.accepted, outcome.drafted);
  observe_pass(outcome, ended_s);
  other_s.observe(std::max(0.0, outcome.round_s - outcome.verify_s - outcome.drafting_s() - outcome.waited_s));
  trees.observe(survival.of(outcome.source).conditional(), outcome);
  if (outcome.tree && outcome.drafted == 0) return;  // no draft was worth a row: not a plain round
  if (outcome.tree) tree_draft_s.observe(outcome.draft_s, outcome.drafted);
  if (outcome.drafted > 0) {
    survival.observe(outcome);
    for (const DraftSource source : kLookUps)
      if (outcome.behind[static_cast<std::size_t>(source)] == 0) survival.fade_behind(source);
  }
  if (outcome.drafted > 0 && !is_looked_up(outcome.source))
    observe_made(outcome, ended_s);
  else if (outcome.drafting_s() > 0)
    observe_late(outcome);
  else if (outcome.drafted == 0)
    observe_plain(outcome);
}

void Estimates::observe_made(const RoundOutcome& outcome, double ended_s) {
  if (!outcome.tree)
    (outcome.ahead ? tokens_ahead : tokens_asked).observe(std::min(outcome.accepted, outcome.own()) + 1);
  if (outcome.ahead) return;  // without a wait it does not measure the cost of a request
  DraftCost& cost = drafts[index_of_made(outcome.source)];
  const double passes = outcome.draft_passes > 0 ? outcome.draft_passes : outcome.own();
  if (const int more = outcome.own() - 1; more > 0 && !outcome.tree)
    cost.behind.observe(std::clamp<double>(passes - 1, 0, more), more);
  const auto bytes = static_cast<double>(outcome.draft_bytes);
  const double arrived_s = ended_s - outcome.round_s + outcome.drafting_s(), pass_s = outcome.draft_s / passes,
               beside = shared_cores.beside_passes(arrived_s - outcome.draft_s, arrived_s);
  shared_cores.observe(beside, pass_s);
  cost.pass_s.observe(std::max(1.0, outcome.draft_pass_rows), pass_s / (1 + beside * (slowdown_beside_passes() - 1)));
  cost.bytes.observe(outcome.draft_rows, bytes);
  if (outcome.draft_waited_s == 0) cost.wire_s.observe(bytes, outcome.draft_wire_s);
}

void Estimates::observe_late(const RoundOutcome& outcome) {
  if (outcome.draft_waited_s > 0) return;
  drafts[index_of_made(outcome.source)].wire_s.observe(static_cast<double>(outcome.draft_bytes), outcome.drafting_s());
}

void Estimates::observe_plain(const RoundOutcome& outcome) {
  // Nothing measures the link while nothing is drafted; its cost fades, so that drafts are tried again.
  for (DraftCost& cost : drafts) cost.wire_s.fade();
  plain_s.observe(outcome.round_s);
  ++plain_rounds;
}

void SequenceEstimates::observe(const RoundOutcome& outcome) {
  trees.observe(survival.of(outcome.source).conditional(), outcome);
  survival.observe(outcome);
}

}  // namespace outrider
