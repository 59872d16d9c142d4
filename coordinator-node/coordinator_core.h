#pragma once

#include <map>
#include <set>
#include <string>

#include "coordinator-node/sessions.h"

namespace outrider {

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
  /// Drafters that draft for each sequence whose answer does not depend on drafts, if there are enough: the first reply
  /// is used.
  int drafters_per_sequence = 1;
};

/// The coordinator as a pure state machine: messages and time in, one output out. It routes each event to the Session
/// of the sequence concerned, which handles the event. Sessions has all sequences, Fleet all workers.
class CoordinatorCore {
 public:
  explicit CoordinatorCore(const CoordinatorConfig& config);

  /// @return false for a useless message: one that neither advanced a sequence nor brought news of a worker. An honest
  /// peer sends few: those in transit when a sequence ended, and heartbeats
  bool on_message(const PeerId& from, Message message, TimePoint now);
  /// Records that more of a peer's long message arrived.
  void on_arriving(const PeerId& from, TimePoint now);
  /// Records that more of a long message to this peer was sent, but not all: the peer cannot have answered yet.
  void on_leaving(const PeerId& to, TimePoint now);
  /// Handles an undecodable message. @param about  its session; 0: unknown
  void on_malformed(const PeerId& from, SessionId about, TimePoint now);
  /// Handles the transport's report that there is no such peer.
  void on_peer_gone(const PeerId& peer, TimePoint now);
  /// Counts `bytes` sent for `message`.
  void on_sent(const Message& message, std::size_t bytes);
  void on_tick(TimePoint now);
  /// Tells clients and workers that this coordinator is about to end, so that they do not wait for a time-out.
  void stop(TimePoint now);
  /// Returns the results of all events since the last call.
  CoordinatorOutput take_output();

  Status status() const;
  /// Number of the first sequence; later ones are consecutive.
  std::uint64_t first_session() const { return config_.instance; }

  // For tests: the loads as counted by the fleet, and as derived from the sessions' phases. They are equal.
  const Fleet& fleet() const { return environment_.fleet; }
  std::map<PeerId, Load> loads() const;

 private:
  bool handle(const PeerId& from, Message message);
  /// Handles a client's Step or Cancel.
  bool on_client(const PeerId& from, const Message& message);
  bool on_hello(const PeerId& from, const Hello& hello);
  bool on_worker(const PeerId& from, Worker& worker, Message message);
  void drop_worker(const PeerId& peer, const std::string& why);

  CoordinatorConfig config_;
  Environment environment_;
  Fleet& fleet_ = environment_.fleet;
  Sessions sessions_;
  std::set<PeerId> asked_status_;  ///< since the last tick: each peer gets one status per tick at most
  std::optional<TimePoint> next_heartbeat_;
};

}  // namespace outrider
