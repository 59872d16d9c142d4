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

/// Everything that follows from an event, in the order in which it is done: messages first.
struct CoordinatorOutput : CoreOutput {
  /// One of every round that lost a draft, but for stepwise sequences, whose drafts are the client's.
  std::vector<Rejection> rejections = {};
};

/// What becomes of a sequence whose verifier dies, drains or is of no use.
struct FailoverConfig {
  Duration wait = std::chrono::seconds(30);  ///< for another verifier of the class to join: a restart and its loading
  /// Verifiers that one sequence may lose. Few: a sequence that makes verifiers crash must not take down all there are.
  /// Verifiers that drain do not count.
  int limit = 2;
  /// Where none of the class has joined after `wait`, the sequence goes on at any other: its bytes may differ from
  /// there on.
  bool allow_inexact = false;
};

/// What the sessions of one coordinator share. It outlives them.
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
  const DraftTable* const table;  ///< nullptr: there is none
  const int drafters_per_sequence;
  const bool want_rejections;
  FailoverCounts failovers = {};
  CoordinatorOutput output = {};
  TimePoint now{};  ///< of the event that is being dealt with; the core sets it

  void send(const PeerId& to, Message message) { output.send.push_back({to, std::move(message)}); }
  void notice(bool warning, std::string text, SessionId session = {}) {
    output.notices.push_back({warning, std::move(text), session});
  }
  /// Of one peer the same once a minute, whichever session saw it.
  void warn_of(const PeerId& peer, std::string text, SessionId session) {
    if (fleet.is_news(peer, text, now)) notice(true, std::move(text), session);
  }
  /// The same of a worker that is there, by role and name.
  void warn_of_worker(const PeerId& worker, const std::string& what, SessionId session);
  /// A drafter was asked. @param accepted  its first draft was
  void judge(const PeerId& drafter, bool accepted) {
    if (auto why = fleet.count_round(drafter, accepted, now)) notice(true, std::move(*why));
  }
  /// What a worker says of a request, as the client may hear it: what is the client's to mend. The rest may name hosts
  /// and files, and goes to the log.
  Error for_client(const PeerId& worker, const Failed& failed, SessionId session);
};

}  // namespace outrider
