#pragma once

#include "coordinator-node/session/round.h"
#include "coordinator-node/session/sequence.h"

namespace outrider {

/// What one answer has cost and brought so far: the metrics that its client gets.
struct Ledger {
  TimePoint opened{}, first_token{};
  bool done = false;  ///< it has ended with an answer
  RequestMetrics metrics = {};

  /// The token after the prompt is here.
  void on_first_token(TimePoint now, Position cached_tokens);
  /// Drafts came after `waited`, of which making them took `draft_ns`.
  void on_candidates(Duration waited, std::int64_t draft_ns);
  /// A verdict came after `waited`, of which verifying took `verify_ns`.
  void on_verdict(Duration waited, std::int64_t verify_ns);
  /// A round's drafts were verified. @param kept  the sources of the accepted ones
  void count_drafts(const Round& round, std::span<const DraftSource> kept);
  void count_failover(bool exact, Duration paused);
  /// `bytes` of a message went out. @param of_round  a K/V chunk of the last round's rows, not of a prompt's
  void on_sent(const Message& message, std::size_t bytes, bool of_round);
};

}  // namespace outrider
