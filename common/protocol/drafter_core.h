#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "common/protocol/membership.h"

namespace outrider {

struct DrafterConfig {
  LinkConfig link = {};
  std::int64_t sessions_max = 256;
  Duration session_idle_max = std::chrono::seconds(120);
};

/// Work for the assistant engine, in this order.
struct DraftWork {
  enum class Kind {
    kExtend,
    kDraft,
    kAhead,  ///< one more forward pass for what is drafted ahead of the session's last kDraft
    kRelease,
  } kind = Kind::kExtend;
  SessionId session{};
  RoundId round{};
  Position base = 0;  ///< kDraft, kAhead: the replica's length
  KvRows kv = {};     ///< kExtend: rows to append to the replica
  Draft draft = {};   ///< kDraft; its own rows are in a kExtend before
};

/// What became of a kAhead.
struct AheadStep {
  std::optional<Candidates> guess = {};  ///< complete
  bool more = false;                     ///< there is more to draft
};

/// The drafter's side of all its sessions, as a pure state machine. It keeps the books on which
/// committed positions the replica holds; the rows themselves are the engine's. A replica only grows:
/// the verifier never sends a row that may be rejected.
class DrafterCore {
 public:
  DrafterCore(const DrafterConfig& config, Hello hello);

  void on_message(Message message, TimePoint now);
  /// What is due by now, and the next work.
  void on_tick(TimePoint now);
  /// Answers a kDraft, unless its drafts were known. @pre the work came from take_output().
  void on_drafted(const DraftWork& work, Candidates drafts);
  /// Likewise a kAhead.
  void on_ahead(const DraftWork& work, AheadStep step);
  /// Tells the coordinator to give no new sessions.
  void drain() { membership_.send({.body = Drain{}}); }

  struct Output : CoreOutput {
    /// Rows and releases in the order they came, then the draft that was asked for first: one at a time, because while
    /// it is made the coordinator may go on without those that wait. They are then dropped, and their rows are there
    /// already. While nobody asks for drafts, one step ahead instead, the sessions in turn.
    std::vector<DraftWork> work;
  };
  /// All that has come up since the last call.
  Output take_output() { return {membership_.take_output(), std::exchange(work_, {})}; }

  const Membership& membership() const { return membership_; }
  std::size_t session_count() const { return sessions_.size(); }

 private:
  struct Session {
    Position replica_end = 0;  ///< committed positions [0, replica_end) are held
    RoundId round{};           ///< the last Draft seen
    std::optional<Message> last_answer;
    TimePoint heard{};
  };

  Session* find_or_open(SessionId id, TimePoint now);
  /// Whether rows continue the replica, and are what the handshake promised.
  bool accept_rows(const Session& session, const KvRows& kv);
  /// Appends rows that accept_rows() likes and the replica does not have. @return whether there were any.
  bool extend(Session& session, SessionId id, KvRows kv);
  void on_draft(Message message, TimePoint now);
  bool waits(SessionId id) const;
  void drop_draft(SessionId id);
  void free(SessionId id);

  DrafterConfig config_;
  Membership membership_;
  std::map<SessionId, Session> sessions_;
  std::vector<DraftWork> rows_;  ///< kExtend and kRelease
  /// kDraft, one of a session at most: the replica ends at its base once rows_ are done.
  std::vector<DraftWork> drafts_;
  std::vector<DraftWork> ahead_;  ///< kAhead, one of a session at most, that whose turn it is first
  std::vector<DraftWork> work_;   ///< about to be handed over
};

}  // namespace outrider
