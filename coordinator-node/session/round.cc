#include "coordinator-node/session/round.h"

#include <algorithm>

namespace outrider {

void Round::next(TimePoint now, bool ahead) {
  // Looked-up drafts after the others are never drafted ahead for.
  std::optional<bool> all_accepted;
  if (ahead && outcome.drafted > 0 && outcome.accepted <= outcome.own())
    all_accepted = outcome.accepted == outcome.own();
  *this = {.id = outrider::next(id), .began = now, .hidden = std::move(hidden), .after_all = all_accepted};
}

void Round::choose(const DraftPlan& chosen) {
  choice = chosen;
  outcome.source = chosen.source;
}

bool Round::is_plain() const {
  return drafts.depths.empty() && std::ranges::count(drafts.sources, outcome.source) == outcome.own();
}

bool Round::has_drafts_of(DraftSource source) const { return std::ranges::count(drafts.sources, source) > 0; }

std::int64_t Round::on_candidates(const PeerId& by, const Candidates& candidates, Duration waited) {
  drafter = by;
  const std::int64_t drafting = std::clamp<std::int64_t>(candidates.draft_ns, 0, waited.count());
  outcome.draft_s = to_seconds(Duration(drafting));
  // From a peer, and used in sums.
  const auto bounded = [](std::int64_t count) {
    return static_cast<double>(std::clamp<std::int64_t>(count, 1, 1 << 16));
  };
  outcome.draft_passes = bounded(candidates.passes);
  outcome.draft_pass_rows = bounded(candidates.pass_rows) / outcome.draft_passes;
  count_wait(waited - Duration(drafting));
  return drafting;
}

void Round::count_wait(Duration waited) {
  // Queued behind other sequences' drafts, the request's waiting and travel times cannot be separated.
  (queued ? outcome.draft_waited_s : outcome.draft_wire_s) = to_seconds(waited);
}

std::int64_t Round::on_verdict(const Verdict& verdict, Duration waited, TimePoint now) {
  const std::int64_t verifying = std::clamp<std::int64_t>(verdict.verify_ns, 0, waited.count()),
                     waiting = std::clamp<std::int64_t>(verdict.waited_ns, 0, waited.count() - verifying);
  outcome.drafted = static_cast<int>(drafts.size());
  outcome.accepted = verdict.accepted;
  outcome.verify_s = to_seconds(Duration(verifying));
  // From a peer, and used in sums.
  outcome.batch_rows = static_cast<int>(std::min<std::int64_t>(verdict.batch_rows, 1 << 16));
  outcome.pass = verdict.pass;
  outcome.waited_s = to_seconds(Duration(waiting));
  outcome.round_s = to_seconds(now - began);
  if (is_tree() && !moved) outcome.tree = {static_cast<int>(drafts.first_end()), drafts.held_first(row_of(verdict))};
  return verifying;
}

}  // namespace outrider
