#pragma once

#include <map>
#include <set>
#include <string>

#include "coordinator-node/sessions.h"

namespace outrider {

/// The coordinator as a pure state machine: messages and time in, one output out. It routes each event to the Session
/// of the sequence concerned, which handles the event. Sessions has all sequences, Fleet all workers.
class CoordinatorCore {
 public:
  explicit CoordinatorCore(const CoordinatorConfig& config) : environment_(config) {}

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

  Environment environment_;
  const CoordinatorConfig& config_ = environment_.config;
  Fleet& fleet_ = environment_.fleet;
  Sessions sessions_{environment_};
  std::set<PeerId> asked_status_;  ///< since the last tick: each peer gets one status per tick at most
  std::optional<TimePoint> next_heartbeat_;
};

}  // namespace outrider
