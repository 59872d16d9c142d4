#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>

#include "coordinator-node/session/session.h"

namespace outrider {

/// The sequences of a coordinator: queued, running, and the audited one. The AdmissionQueue chooses the next to start,
/// the Auditor the answer to audit; the latter is the client "".
class Sessions {
 public:
  using Map = std::map<SessionId, std::unique_ptr<Session>>;

  explicit Sessions(Environment& environment) : environment_(environment) {}

  const Map& all() const { return all_; }
  /// Returns the session with this number; nullptr if there is none.
  Session* find(SessionId id) const;
  Session* find(const PeerId& client, SessionId request_id) const;
  /// Accepts or refuses a client's request. @return true if accepted
  bool open(const PeerId& client, SessionId request_id, Generate request);
  /// Starts the sequences that have lost their verifier, then queued ones in their order. No sequence overtakes another
  /// at a verifier that the other waits for.
  void start_waiting();
  /// Ends the stepwise sequence that has been idle longest, if that time is long and another sequence waits for its
  /// place.
  void make_room();
  /// Updates the queue and forgets ended sessions, after an event of one session, or of all.
  void reap(SessionId id);
  void reap_all();
  /// Begins an audit if no other sequence waits, and exchanges messages between its session and the auditor. Called
  /// after each event. @param again  tries an audit that lacked room again: each attempt copies its sequence
  void audit(bool again = false);
  /// Ends all sessions, so that clients do not wait for a time-out.
  void stop();
  void describe(Status& status) const;

 private:
  /// Returns the next queued sequence that could start, except `lacking`, which lack room. Their clients' other
  /// sequences wait with them.
  std::optional<SessionId> next_queued(const std::set<SessionId>& lacking) const;
  void begin_audit();

  Environment& environment_;
  AdmissionQueue queue_{environment_.config.queue};
  Auditor auditor_{environment_.config.audit};
  std::set<PeerId> awaited_;       ///< verifiers whose room sequences wait for, at the last attempt to start them
  bool audit_lacks_room_ = false;  ///< the next audit, at the last attempt
  Map all_;
  std::uint64_t next_ = environment_.config.instance;  ///< number of the next session
};

}  // namespace outrider
