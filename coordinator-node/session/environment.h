#pragma once

#include <string>
#include <utility>
#include <vector>

#include "common/decoding/drafting/draft_table.h"
#include "common/decoding/drafting/policies.h"
#include "common/wire/messages/membership.h"
#include "coordinator-node/fleet.h"
#include "coordinator-node/rejection.h"

namespace outrider {

/// All results of an event, in order of execution: messages first.
struct CoordinatorOutput : CoreOutput {
  /// One entry per round with a rejected draft, except in stepwise sequences, whose drafts are the client's.
  std::vector<Rejection> rejections = {};
};

/// Handling of a sequence whose verifier dies, drains or is useless.
struct FailoverConfig {
  Duration wait = std::chrono::seconds(30);  ///< for another verifier of the class to join: a restart and its loading
  /// Verifiers that one sequence may lose. The number is small because a sequence that makes verifiers crash must not
  /// take down all of them. Draining verifiers do not count.
  int limit = 2;
  /// After `wait` without a verifier of the class, the sequence continues at any other one. Its bytes may differ then.
  bool allow_inexact = false;
};

/// State that a coordinator's sessions share. It outlives them.
struct Environment {
  Environment(std::uint64_t instance, FailoverConfig failover_config, const DraftTable* draft_table, int drafters,
              bool rejections)
      : fleet(instance),
        failover(failover_config),
        table(draft_table),
        drafters_per_sequence(drafters),
        want_rejections(rejections) {}

  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

  Fleet fleet;
  const FailoverConfig failover;
  const DraftTable* const table;  ///< nullptr: none
  const int drafters_per_sequence;
  const bool want_rejections;
  FailoverCounts failovers = {};
  std::int64_t drafts_made = 0, drafts_missed = 0;  ///< see Status
  CoordinatorOutput output = {};
  TimePoint now{};  ///< of the current event; set by the core

  void send(const PeerId& to, Message message) { output.send.push_back({to, std::move(message)}); }
  void notice(bool warning, std::string text, SessionId session = {}) {
    output.notices.push_back({warning, std::move(text), session});
  }
  /// Logs a warning about a peer. The same warning is logged at most once a minute, whichever session it comes from.
  void warn_of(const PeerId& peer, std::string text, SessionId session) {
    if (fleet.is_news(peer, text, now)) notice(true, std::move(text), session);
  }
  /// Logs a warning about a joined worker, by role and name.
  void warn_of_worker(const PeerId& worker, const std::string& what, SessionId session);
  /// Counts a round in which a drafter was asked for drafts. @param accepted  its first draft was accepted
  void judge(const PeerId& drafter, bool accepted) {
    if (auto why = fleet.count_round(drafter, accepted, now)) notice(true, std::move(*why));
  }
  /// Returns the part of a worker's error that a client may see: the faults of its request. The rest may name hosts and
  /// files, and goes to the log.
  Error for_client(const PeerId& worker, const Failed& failed, SessionId session);
};

}  // namespace outrider
