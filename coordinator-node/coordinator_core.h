#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>

#include "coordinator-node/admission_queue.h"
#include "coordinator-node/auditor.h"
#include "coordinator-node/session/session.h"

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
/// event concerns. What then happens is the matter of the sequence's Session, the workers are the Fleet's, and the
/// AdmissionQueue says which sequence starts next.
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
  using Sessions = std::map<SessionId, std::unique_ptr<Session>>;

  void send(const PeerId& to, Message message) { environment_.send(to, std::move(message)); }
  bool deal_with(const PeerId& from, Message message);

  // ---- clients ----
  bool on_generate(const PeerId& from, SessionId request_id, Generate request);
  bool on_step(const PeerId& from, SessionId request_id, const Step& step);
  Sessions::iterator find_request(const PeerId& client, SessionId request_id);
  /// Starts the sequences that have lost their verifier, then those whose turn it is, until one has to go on waiting.
  void start_waiting();
  /// Whose turn it is, if it can start.
  std::optional<SessionId> next_queued() const;
  /// Where a sequence waits although it is its turn, since there is no room: ends the stepwise sequence that has rested
  /// longest, if that is long.
  void make_room();
  /// After an event of one session, or of all: tells the line, and forgets those that have ended.
  void reap(Sessions::iterator entry);
  void reap_all();

  // ---- answers that are verified again ----
  /// Begins one if nobody else waits, and brings what its sequence and the auditor have to say to each other.
  void audit();
  void begin_audit();
  /// What was said to client "", which is the auditor.
  std::vector<Message> take_words_to_auditor();

  // ---- workers ----
  bool on_hello(const PeerId& from, const Hello& hello);
  /// Says of an encoder and a verifier, one of which has just come, if the one is of no use to the other's sequences.
  void compare_encoding(const Hello& newcomer);
  bool on_worker(const PeerId& from, Worker& worker, Message message);
  void refuse(const PeerId& peer, const std::string& name, std::string why);
  void drop_worker(const PeerId& peer, const std::string& why);

  CoordinatorConfig config_;
  Environment environment_;
  Fleet& fleet_ = environment_.fleet;
  AdmissionQueue queue_;
  Sessions sessions_;
  Auditor auditor_;
  std::uint64_t next_session_;
  std::set<PeerId> asked_status_;  ///< since the last tick: who asks without end is answered once a tick
  std::optional<TimePoint> next_heartbeat_;
};

}  // namespace outrider
