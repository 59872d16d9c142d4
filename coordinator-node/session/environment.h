#pragma once

#include <string>
#include <utility>
#include <vector>

#include "common/decoding/drafting/draft_table.h"
#include "common/decoding/drafting/policies.h"
#include "common/wire/messages/membership.h"
#include "coordinator-node/admission_queue.h"
#include "coordinator-node/auditor.h"
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
  /// After `wait` without a verifier of the class, the sequence continues at any other. Its bytes may then differ.
  bool allow_inexact = false;
};

struct CoordinatorConfig {
  /// The first session number, and the first number of a Welcome. The number must be random, because workers recognise
  /// a new coordinator by it.
  std::uint64_t instance = 1;
  LinkConfig link = {};
  AdmissionConfig queue = {};
  FailoverConfig failover = {};
  AuditConfig audit = {};
  bool want_rejections = false;       ///< fills CoordinatorOutput::rejections: drafters send their distributions
  const DraftTable* table = nullptr;  ///< source of drafts for sequences of its model; outlives the core
  /// Drafters, if there are enough, that draft for each sequence whose answer does not depend on drafts; the first
  /// reply is used.
  int drafters_per_sequence = 1;
};

/// State that a coordinator's sessions share. It outlives them.
struct Environment {
  explicit Environment(const CoordinatorConfig& coordinators) : config(coordinators), fleet(config.instance) {}
  Environment(const Environment&) = delete;
  Environment& operator=(const Environment&) = delete;

  const CoordinatorConfig config;
  Fleet fleet;
  FailoverCounts failovers = {};
  std::int64_t drafts_made = 0, drafts_missed = 0;  ///< see Status
  CoordinatorOutput output = {};
  std::vector<Message> to_auditor = {};  ///< to client ""
  TimePoint now{};                       ///< of the current event; set by the core

  void send(const PeerId& to, Message message) {
    if (to.empty()) return to_auditor.push_back(std::move(message));
    output.send.push_back({to, std::move(message)});
  }
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
  /// Returns the part of a worker's error that a client may see: the faults of its request. Other errors may name hosts
  /// and files, and only go to the log.
  Error for_client(const PeerId& worker, const Failed& failed, SessionId session);
};

}  // namespace outrider
