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

int Estimates::others() const { return static_cast<int>(std::lround(other_rows.value())); }

void Estimates::observe_pass(const RoundOutcome& outcome) {
  const int rows = std::max(outcome.batch_rows, outcome.drafted + 1);
  const double seconds = outcome.verify_s;
  other_rows.observe(rows - outcome.drafted - 1);
  if (outcome.pass != 0 && outcome.pass == last_pass) return;
  last_pass = outcome.pass;
  lately.observe(rows, seconds);
  const double usual_s = usual.likely(rows);
  if (!usual.knows(rows) || usual_s <= 0) return usual.observe(rows, seconds / load);
  load = std::clamp((load + seconds / usual_s) / 2, 0.1, 10.0);
  // The load lags by one pass, so a single pass must not change `usual` much.
  usual.observe(rows, std::clamp(seconds / load, usual_s / 1.1, usual_s * 1.1));
}

void Estimates::observe(const RoundOutcome& outcome) {
  CHECK(outcome.drafted >= 0 && outcome.accepted >= 0 && outcome.accepted <= outcome.drafted, "{} of {}",
        outcome.accepted, outcome.drafted);
  observe_pass(outcome);
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
    observe_made(outcome);
  else if (outcome.drafting_s() > 0)
    observe_late(outcome);
  else if (outcome.drafted == 0)
    observe_plain(outcome);
}

void Estimates::observe_made(const RoundOutcome& outcome) {
  if (!outcome.tree)
    (outcome.ahead ? tokens_ahead : tokens_asked).observe(std::min(outcome.accepted, outcome.own()) + 1);
  if (outcome.ahead) return;  // without a wait it does not measure the cost of a request
  DraftCost& cost = drafts[index_of_made(outcome.source)];
  const double passes = outcome.draft_passes > 0 ? outcome.draft_passes : outcome.own();
  if (const int more = outcome.own() - 1; more > 0 && !outcome.tree)
    cost.behind.observe(std::clamp<double>(passes - 1, 0, more), more);
  const auto bytes = static_cast<double>(outcome.draft_bytes);
  cost.pass_s.observe(std::max(1.0, outcome.draft_pass_rows), outcome.draft_s / passes);
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
  has_begun = true;
}

}  // namespace outrider
