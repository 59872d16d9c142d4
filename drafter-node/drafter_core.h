#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <vector>

#include "common/wire/messages/donor_rows.h"
#include "common/wire/messages/membership.h"

namespace outrider {

struct DrafterConfig {
  LinkConfig link = {};
  std::int64_t sessions_max = 256;
  Duration session_idle_max = std::chrono::seconds(120);
  // See Capacity: of a drafter with K/V of its own.
  KvCost kv_cost = {};
  std::int64_t kv_bytes_max = std::numeric_limits<std::int64_t>::max();
};

/// Work for the draft engine without a forward pass, in this order.
struct DraftWork {
  enum class Kind {
    kExtend,
    kDraft,    ///< the session's next turns are for this Draft
    kAbandon,  ///< the last Draft gets no more turns
    kRelease,
  } kind = Kind::kExtend;
  SessionId session{};
  RoundId round{};
  Position base = 0;  ///< kDraft: the replica's length
  KvRows kv = {};     ///< kExtend: rows to append to the replica
  Draft draft = {};   ///< kDraft; its own rows are in an earlier kExtend
};

/// Maximum nodes of a token tree per forward pass. Rows of a pass share a read of the weights, but rows of unlikely
/// nodes are mostly wasted.
inline constexpr std::size_t kTreeStepRows = 8;
/// Outcomes for which a drafter drafts ahead together, one row of a forward pass each. With more, all finish sooner,
/// but the most probable ones later, and rows are not free: docs/lab/ahead.md, "Outcomes in one pass".
inline constexpr std::size_t kAheadStepRows = 2;

/// A session's share of a forward pass, for its last kDraft, or before one to compute K/V of its rows.
struct DraftTurn {
  SessionId session{};
  RoundId round{};
  Position base = 0;  ///< the replica's length
  bool operator==(const DraftTurn&) const = default;
};

/// Result of a turn.
struct DraftProgress {
  std::vector<Candidates> drafts = {};  ///< complete ones: the requested drafts, or with `after` drafts ahead
  bool more = false;                    ///< there is more to draft or to compute
  std::int64_t behind = 0;              ///< rows of the replica without K/V of the drafter's own
  std::int64_t waiting_bytes = 0;       ///< memory of these
};

/// The drafter's side of all its sessions, as a pure state machine. It tracks the committed positions of each replica;
/// the rows themselves are the engine's. A replica only grows: the verifier never sends a row that may be rejected.
class DrafterCore {
 public:
  DrafterCore(const DrafterConfig& config, Hello hello);

  void on_message(Message message, TimePoint now);
  /// Does what is due, and chooses the next work.
  void on_tick(TimePoint now);
  /// Records that more of a long message arrived.
  void on_arriving(TimePoint now) { membership_.on_arriving(now); }
  /// @pre the turn came from take_output()
  void on_turn(const DraftTurn& turn, DraftProgress progress);
  /// Answers all requests for drafts with none, since no pass can be made now. Their rows are kept.
  /// @return false if there were no requests
  bool decline();
  /// Tells the coordinator to send no new sessions.
  void drain() { membership_.drain(); }

  struct Output : CoreOutput {
    std::vector<DraftWork> work;  ///< in order of arrival
    /// Then one forward pass, in order of the requests: for all sessions that wait for drafts, or for half of the
    /// drafting ones if the first request asks for that (Draft::halves). Later requests are in the next pass; a session
    /// that the coordinator continued without drafts is left out. Without requests the pass drafts ahead, one step for
    /// one session in turn, so that a new request does not wait long.
    std::vector<DraftTurn> pass;
  };
  /// Returns all results since the last call: only messages while a pass is in progress, until on_turn() or decline().
  Output take_output() {
    in_pass_ = in_pass_ || !pass_.empty();
    return {membership_.take_output(), std::exchange(work_, {}), std::exchange(pass_, {})};
  }

  const Membership& membership() const { return membership_; }
  std::size_t session_count() const { return sessions_.size(); }
  /// Memory reserved for the sessions' K/V.
  std::int64_t kv_bytes() const { return kv_bytes_; }
  /// Memory of rows that wait for their K/V.
  std::int64_t waiting_bytes() const { return waiting_bytes_; }

 private:
  /// Every eighth pass is for a session that lacks K/V, or busy sessions would keep it out for ever.
  static constexpr int kCatchUpWaitsMax = 8;
  static constexpr std::size_t kPassRowsMax = 16;  ///< bounds the memory of a pass: a row of scores may be a MiB
  struct Job {
    DraftTurn turn;
    std::size_t rows = 1;  ///< of a pass
    bool asked = true;     ///< its drafts were requested; else it drafts ahead
    bool halves = false;   ///< Draft::halves
  };
  struct Session {
    Position replica_end = 0;        ///< committed positions [0, replica_end) are here
    RoundId round{};                 ///< of the last Draft
    std::int64_t behind = 0;         ///< DraftProgress::behind, at most
    std::int64_t kv_bytes = 0;       ///< reserved for it
    std::int64_t waiting_bytes = 0;  ///< DraftProgress::waiting_bytes, at most
    bool no_room = false;            ///< its last rows were dropped
    bool has_new_rows = false;       ///< rows came after the last Draft that was accepted, or it was abandoned
    std::uint64_t asked = 0;         ///< number of its last request for drafts, over all sessions; 0: none
    std::optional<Message> last_answer;
    TimePoint last_message{};
  };

  Session* find_or_open(SessionId id, TimePoint now);
  /// Reserves K/V of `positions` positions for the session, and memory for `waiting` more bytes of rows. All memory was
  /// promised to the coordinator for K/V (Capacity), so rows get what reserved K/V leaves, and at least one message.
  /// @return kUnavailable if there is no memory for them
  Result<void> set_aside(Session& session, Position positions, std::int64_t waiting = 0);
  /// Returns true if rows continue the replica, and fit the handshake's facts.
  bool accept_rows(const Session& session, SessionId id, const KvRows& kv);
  /// Appends accepted rows that the replica lacks. @return true if there were any
  bool extend(Session& session, SessionId id, KvRows kv);
  void on_draft(Message message, TimePoint now);
  /// Checks that a Draft has this drafter's input, and asks only for drafts that this drafter makes.
  Result<void> check_draft(const Draft& draft, Position base) const;
  /// Schedules K/V of the session's new rows for a time without requests. Without new rows the engine would mistake the
  /// turn for one of the last Draft, whose turns compute the other rows.
  void catch_up(const Session& session, SessionId id);
  /// Drops the session's Draft, if it has turns left.
  void abandon(Session& session, SessionId id);
  std::vector<DraftTurn> next_pass();
  /// Number of sessions among the last to request drafts.
  std::size_t drafting() const;
  std::vector<Job>::iterator find_job(SessionId id);
  /// @return false if there is none
  bool drop_job(SessionId id);
  void free(SessionId id);

  DrafterConfig config_;
  const DraftInput needs_;
  const bool own_kv_;  ///< passes compute K/V for the rows of its replicas
  Membership membership_;
  std::map<SessionId, Session> sessions_;
  std::int64_t kv_bytes_ = 0, waiting_bytes_ = 0;  ///< of all sessions
  int catch_up_waits_ = 0;                         ///< passes for which a session that lacks K/V has waited
  std::uint64_t asked_ = 0;    ///< requests for drafts so far
  std::vector<DraftWork> next_work_;
  /// At most one per session, in the order of turns. Once next_work_ is done, its session's replica ends at its base.
  std::vector<Job> jobs_;
  // About to be handed over:
  std::vector<DraftWork> work_;
  std::vector<DraftTurn> pass_;
  bool in_pass_ = false;  ///< a pass was handed over, and is not done
};

}  // namespace outrider
