#include "coordinator-node/session/ledger.h"

#include <algorithm>

namespace outrider {

void Ledger::on_first_token(TimePoint now, Position cached_tokens) {
  first_token = now;
  metrics.prefill_ns = (now - opened).count();
  metrics.cached_prompt_tokens = cached_tokens;
}

void Ledger::on_candidates(Duration waited, std::int64_t draft_ns) {
  metrics.draft_ns += draft_ns;
  metrics.wire_ns += waited.count() - draft_ns;
}

void Ledger::on_verdict(Duration waited, std::int64_t verify_ns) {
  ++metrics.rounds;
  metrics.verify_ns += verify_ns;
  metrics.wire_ns += waited.count() - verify_ns;
}

void Ledger::count_drafts(const Round& round, std::span<const DraftSource> kept) {
  const std::int64_t accepted = std::ssize(kept);
  ++metrics.drafting_rounds;
  metrics.drafted_tokens += round.drafts.size();
  metrics.accepted_tokens += accepted;
  metrics.ahead_rounds += round.outcome.ahead;
  const auto count_looked_up = [&](DraftSource source, LookedUp& sums) {
    sums.rounds += round.outcome.source == source;
    sums.drafted_tokens += std::ranges::count(round.drafts.sources, source);
    sums.accepted_tokens += std::ranges::count(kept, source);
  };
  count_looked_up(DraftSource::kNgram, metrics.ngram);
  count_looked_up(DraftSource::kTable, metrics.table);
  // A tree's drafts for one position count once.
  const auto places = static_cast<std::size_t>(round.drafts.tree().height());
  if (metrics.drafted_per_position.size() < places) {
    metrics.drafted_per_position.resize(places);
    metrics.accepted_per_position.resize(places);
  }
  for (std::size_t i = 0; i < places; ++i) {
    ++metrics.drafted_per_position[i];
    metrics.accepted_per_position[i] += static_cast<std::int64_t>(i) < accepted;
  }
}

void Ledger::count_failover(bool exact, Duration paused) {
  ++metrics.failovers;
  metrics.inexact_failovers += exact ? 0 : 1;
  metrics.failover_ns += paused.count();
}

void Ledger::on_sent(const Message& message, std::size_t bytes, bool of_round) {
  const auto count = static_cast<std::int64_t>(bytes);
  const Body& body = message.body;
  if (std::holds_alternative<Draft>(body) || of_round) {
    metrics.wire_bytes_to_drafter += count;
  } else if (std::holds_alternative<KvChunk>(body)) {
    metrics.wire_bytes_to_drafter_prompt += count;
  } else if (std::holds_alternative<Verify>(body) || std::holds_alternative<Prefill>(body)) {
    metrics.wire_bytes_to_verifier += count;
  } else if (std::holds_alternative<Encode>(body)) {
    metrics.wire_bytes_to_encoder += count;
  }
}

}  // namespace outrider
