#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "coordinator-node/admission_queue.h"
#include "coordinator-node/auditor.h"
#include "coordinator-node/session/session.h"

namespace outrider {

/// The sequences of a coordinator: those that wait for their turn, those that run, and the answer that is verified
/// again. The AdmissionQueue says which starts next, the Auditor which answer is verified again; it is the client "".
class Sessions {
 public:
  using Map = std::map<SessionId, std::unique_ptr<Session>>;

  /// @param first  the number of the first session
  Sessions(Environment& environment, const AdmissionConfig& queue, const AuditConfig& audit, SessionId first)
      : environment_(environment), queue_(queue), auditor_(audit), next_(value(first)) {}

  const Map& all() const { return all_; }
  /// nullptr where there is none.
  Session* find(SessionId id) const;
  Session* find(const PeerId& client, SessionId request_id) const;
  /// Takes a client's request, or refuses it. @return whether it was taken
  bool open(const PeerId& client, SessionId request_id, Generate request);
  /// Starts the sequences that have lost their verifier, then those whose turn it is, until one has to go on waiting.
  void start_waiting();
  /// Where a sequence waits although it is its turn, since there is no room: ends the stepwise sequence that has rested
  /// longest, if that is long.
  void make_room();
  /// After an event of one session, or of all: tells the queue, and forgets those that have ended.
  void reap(SessionId id);
  void reap_all();
  /// After each event: begins to verify an answer again if nobody else waits, and brings what its session and the
  /// auditor have to say to each other.
  void audit();
  /// Ends all of them: clients need not wait until the coordinator is silent.
  void stop();
  void describe(Status& status) const;

 private:
  /// Whose turn it is, if it can start.
  std::optional<SessionId> next_queued() const;
  void begin_audit();
  /// What was said to client "", which is the auditor.
  std::vector<Message> take_words_to_auditor();

  Environment& environment_;
  AdmissionQueue queue_;
  Auditor auditor_;
  Map all_;
  std::uint64_t next_;  ///< number of a session
};

}  // namespace outrider
