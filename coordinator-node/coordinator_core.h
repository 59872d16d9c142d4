#pragma once

#include <map>
#include <set>
#include <string>

#include "coordinator-node/sessions.h"

namespace outrider {

struct CoordinatorConfig {
  /// The first session number, and the first number of a Welcome. Give a random one: workers tell this coordinator from
  /// an earlier one by it.
  std::uint64_t instance = 1;
  LinkConfig link = {};
  AdmissionConfig queue = {};
  FailoverConfig failover = {};
  AuditConfig audit = {};
  bool want_rejections = false;       ///< fill CoordinatorOutput::rejections: the drafters send their distributions
  const DraftTable* table = nullptr;  ///< a source of drafts for sequences of its model; outlives the core
  /// So many draft for each sequence whose drafts have no say in it, where there are as many: who answers first is
  /// taken.
  int drafters_per_sequence = 1;
};

/// The coordinator's side of everything, as a pure state machine: messages and time in, one output out. It says who an
/// event concerns. What then happens is the matter of the sequence's Session; all of them are Sessions, and the workers
/// are the Fleet's.
class CoordinatorCore {
 public:
  explicit CoordinatorCore(const CoordinatorConfig& config);

  /// @return whether it was of use: moved a sequence, or told of a worker. An honest peer says little that is not: what
  ///   was on its way when a sequence ended, signs of life.
  bool on_message(const PeerId& from, Message message, TimePoint now);
  /// More of a long message of a peer has come.
  void on_arriving(const PeerId& from, TimePoint now);
  /// More of a long message has gone to this peer, and not all: it cannot have answered.
  void on_leaving(const PeerId& to, TimePoint now);
  /// What a peer said cannot be read. @param about  the session that it is about; 0: not even that
  void on_malformed(const PeerId& from, SessionId about, TimePoint now);
  /// The transport found no such peer.
  void on_peer_gone(const PeerId& peer, TimePoint now);
  /// `bytes` of `message` went out: counts the wire.
  void on_sent(const Message& message, std::size_t bytes);
  void on_tick(TimePoint now);
  /// It is about to end: tells clients and workers, who need not wait until it is silent.
  void stop(TimePoint now);
  /// What follows from all of the above since it was asked last.
  CoordinatorOutput take_output();

  Status status() const;
  /// The number of the first sequence that comes; the next ones follow.
  std::uint64_t first_session() const { return config_.instance; }

  // For tests: the loads as the fleet counts them, and as the sessions' phases say. They are the same.
  const Fleet& fleet() const { return environment_.fleet; }
  std::map<PeerId, Load> loads() const;

 private:
  bool deal_with(const PeerId& from, Message message);
  /// A client's Step or Cancel.
  bool on_client(const PeerId& from, const Message& message);
  bool on_hello(const PeerId& from, const Hello& hello);
  bool on_worker(const PeerId& from, Worker& worker, Message message);
  void drop_worker(const PeerId& peer, const std::string& why);

  CoordinatorConfig config_;
  Environment environment_;
  Fleet& fleet_ = environment_.fleet;
  Sessions sessions_;
  std::set<PeerId> asked_status_;  ///< since the last tick: who asks without end is answered once a tick
  std::optional<TimePoint> next_heartbeat_;
};

}  // namespace outrider
