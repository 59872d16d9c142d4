#pragma once

#include "coordinator-node/session/round.h"
#include "coordinator-node/session/sequence.h"

namespace outrider {

/// Cost and result of one answer so far: the metrics that its client gets.
struct Ledger {
  TimePoint opened{}, first_token{};
  bool done = false;  ///< ended with an answer
  RequestMetrics metrics = {};

  /// Counts the token after the prompt.
  void on_first_token(TimePoint now, Position cached_tokens);
  /// Counts drafts that came after `waited`, including `draft_ns` of drafting.
  void on_candidates(Duration waited, std::int64_t draft_ns);
  /// Counts a verdict that came after `waited`, including `verify_ns` of verifying.
  void on_verdict(Duration waited, std::int64_t verify_ns);
  /// Counts verified drafts. @param kept  the sources of the accepted ones
  void count_drafts(const Round& round, std::span<const DraftSource> kept);
  void count_failover(bool exact, Duration paused);
  /// Counts `bytes` of a sent message. @param of_round  a K/V chunk of the last round's rows, not of a prompt's
  void on_sent(const Message& message, std::size_t bytes, bool of_round);
};

}  // namespace outrider
