#include "coordinator-node/worker.h"

#include "common/decoding/drafting/round_cost.h"

namespace outrider {

std::int64_t Worker::max_tokens_that_fit(Position prompt, std::int64_t media_bytes) const {
  const Capacity& capacity = hello.capacity;
  const Position positions = capacity.kv_cost.positions(capacity.kv_bytes_max - media_bytes);
  return std::min(positions, hello.facts.context_max) - prompt + 1;  // the last token of an answer needs no K/V
}

bool Worker::drafts_by_halves(DraftInput needs, int draft_length, int drafters) const {
  if (sessions < 2) return false;
  const int others = sessions - 1;
  const OtherWork other_work{.sequences = others,
                             .rows = others * (draft_length + 1),
                             .drafts = others * draft_length,
                             .longest = draft_length,
                             .drafters = drafters};
  const Estimates& estimates = costs_with(needs);
  const RoundTerms terms = round_terms(estimates, DraftSource::kAssistant, draft_length, draft_length + 1, other_work);
  return together(estimates, terms, other_work, draft_length).halves;
}

bool Worker::suits(const DrafterRequirements& requirements) const {
  return drafts() && !(requirements.proven && hello.unproven) &&
         kv_of(requirements.in_all) <= hello.capacity.kv_bytes_max &&
         !(needs_rows() ? requirements.no_rows : requirements.no_tokens) && context() >= requirements.positions;
}

void Worker::on_message(TimePoint now) {
  last_bytes = last_message = now;
  arriving.since.reset();
  if (!verifies() && now >= ask_again) suspect = false;
  reputation.on_time(now);
}

void Worker::on_bytes(TimePoint now) {
  constexpr Duration kMessageMax = std::chrono::minutes(10);  // otherwise a trickle would keep it alive for ever
  if (now - last_message > kMessageMax) return;
  last_bytes = arriving.last = now;
  if (!arriving.since) arriving.since = now;
}

void Worker::pause_rows(TimePoint now) {
  constexpr Duration kPauseMin = std::chrono::minutes(1), kPauseMax = std::chrono::minutes(64);
  rows_pause = std::clamp(2 * rows_pause, kPauseMin, kPauseMax);
  rows_again = now + rows_pause;
}

void Worker::measure(Duration time) {
  // Not the mean: a worker in a forward pass answers late, which is not the network's delay. So the estimate falls at
  // once and rises slowly.
  rtt = rtt == Duration::zero() ? time : std::min(time, rtt + (time - rtt) / 64);
}

void Worker::miss(TimePoint now) {
  // A live worker that misses its time again may always be too slow or too far away.
  constexpr Duration kRetryMin = std::chrono::seconds(1), kRetryMax = std::chrono::seconds(64);
  suspect = true;
  ask_again = now + retry;
  retry = std::clamp(2 * retry, kRetryMin, kRetryMax);
}

}  // namespace outrider
