#pragma once

#include <map>
#include <set>
#include <string>

#include "common/protocol/auditor.h"
#include "common/protocol/line.h"
#include "common/protocol/session.h"

namespace outrider {

struct CoordinatorConfig {
  /// The first session number, and the first number of a Welcome. Give a random one: workers tell this coordinator from
  /// an earlier one by it.
  std::uint64_t instance = 1;
  LinkConfig link = {};
  LineConfig line = {};
  FailoverConfig failover = {};
  AuditConfig audit = {};
  bool want_rejections = false;       ///< fill CoordinatorOutput::rejections: the drafters send their distributions
  const DraftTable* table = nullptr;  ///< a source of drafts for texts of its model; outlives the core
  /// So many draft for each text whose drafts have no say in it, where there are as many: who answers first is taken.
  int drafters_per_text = 1;
};

/// The coordinator's side of everything, as a pure state machine: messages and time in, one output out. It says who an
/// event concerns. What then happens is the matter of the text's Session, the workers are the Fleet's, and the Line
/// says which text starts next.
class CoordinatorCore {
 public:
  explicit CoordinatorCore(const CoordinatorConfig& config);

  /// @return whether it was of use: moved a text, or told of a worker. An honest peer says little that is not: what was
  ///   on its way when a text ended, signs of life.
  bool on_message(const PeerId& from, Message message, TimePoint now);
  /// The transport found no such peer.
  void on_peer_gone(const PeerId& peer, TimePoint now);
  /// `bytes` of `message` went out: counts the wire.
  void on_sent(const Message& message, std::size_t bytes);
  void on_tick(TimePoint now);
  /// It is about to end: tells clients and workers, who need not wait until it is silent.
  void stop(TimePoint now);
  /// What follows from all of the above since it was asked last.
  CoordinatorOutput take_output();

  /// What the sessions' policies learned; to be kept over restarts.
  Policies& policies() { return policies_; }
  Status status() const;
  /// The number of the first text that comes; the next ones follow.
  std::uint64_t first_session() const { return config_.instance; }

  // For tests: the fleet's books, and what the sessions say. They are the same.
  const Fleet& fleet() const { return fleet_; }
  std::map<PeerId, Load> loads() const;

 private:
  using Sessions = std::map<SessionId, Session>;

  Desk desk(TimePoint now) {
    return {.fleet = fleet_,
            .policies = policies_,
            .failover = config_.failover,
            .failovers = failovers_,
            .output = output_,
            .now = now,
            .want_rejections = config_.want_rejections,
            .table = config_.table,
            .drafters_per_text = config_.drafters_per_text};
  }
  void send(const PeerId& to, Message message) { output_.send.push_back({to, std::move(message)}); }
  bool deal_with(const PeerId& from, Message message, TimePoint now);
  void notice(bool warning, std::string text, SessionId session = {}) {
    output_.notices.push_back({warning, std::move(text), session});
  }

  // ---- clients ----
  bool on_generate(const PeerId& from, SessionId request_id, Generate request, TimePoint now);
  bool on_step(const PeerId& from, SessionId request_id, const Step& step, TimePoint now);
  Sessions::iterator find_request(const PeerId& client, SessionId request_id);
  /// Starts the texts that have lost their verifier, then those whose turn it is, until one has to go on waiting.
  void start_waiting(TimePoint now);
  /// Whose turn it is, if it can start.
  std::optional<SessionId> next_in_line(TimePoint now) const;
  /// Where a text waits although it is its turn, since there is no room: ends the stepwise text that has rested
  /// longest, if that is long.
  void make_room(TimePoint now);
  /// After an event of one session, or of all: tells the line, and forgets those that have ended.
  void settle(Sessions::iterator session);
  void settle_all();

  // ---- answers that are verified again ----
  /// Begins one if nobody else waits, and brings what its text and the auditor have to say to each other.
  void audit(TimePoint now);
  void begin_audit(TimePoint now);
  /// What was said to client "", which is the auditor.
  std::vector<Message> take_words_to_auditor();

  // ---- workers ----
  bool on_hello(const PeerId& from, const Hello& hello, TimePoint now);
  /// Says of an encoder and a verifier, one of which has just come, if the one is of no use to the other's texts.
  void compare_encoding(const Hello& newcomer);
  bool on_worker(const PeerId& from, Worker& worker, Message message, TimePoint now);
  void refuse(const PeerId& peer, const std::string& name, std::string why, TimePoint now);
  void drop_worker(const PeerId& peer, const std::string& why, TimePoint now);

  CoordinatorConfig config_;
  Fleet fleet_;
  Line line_;
  Policies policies_;
  Sessions sessions_;
  Auditor auditor_;
  std::uint64_t next_session_;
  FailoverCounts failovers_;
  std::set<PeerId> asked_status_;  ///< since the last tick: who asks without end is answered once a tick
  std::optional<TimePoint> next_heartbeat_;
  CoordinatorOutput output_;
};

}  // namespace outrider
