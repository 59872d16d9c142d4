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
  // As Capacity has them: of a drafter with K/V of its own.
  KvCost kv_cost = {};
  std::int64_t kv_bytes_max = std::numeric_limits<std::int64_t>::max();
};

/// Work for the assistant engine that takes no forward pass, in this order.
struct DraftWork {
  enum class Kind {
    kExtend,
    kDraft,  ///< the session's next turns are for this Draft
    kRelease,
  } kind = Kind::kExtend;
  SessionId session{};
  RoundId round{};
  Position base = 0;  ///< kDraft: the replica's length
  KvRows kv = {};     ///< kExtend: rows to append to the replica
  Draft draft = {};   ///< kDraft; its own rows are in a kExtend before
};

/// Most nodes of a token tree that a forward pass takes: its rows share the weights that are read, but those of
/// unlikely nodes are mostly for nothing.
inline constexpr std::size_t kTreeStepRows = 8;
/// Outcomes for which a drafter drafts ahead together, a row of a forward pass each. More of them are through sooner,
/// but the likeliest later, and rows are not free: docs/lab/ahead.md, "Outcomes in one pass".
inline constexpr std::size_t kAheadStepRows = 2;

/// A session takes part in a forward pass, for its last kDraft, or before one to compute K/V of its rows.
struct DraftTurn {
  SessionId session{};
  RoundId round{};
  Position base = 0;  ///< the replica's length
  bool operator==(const DraftTurn&) const = default;
};

/// What came of a turn.
struct DraftProgress {
  std::vector<Candidates> drafts = {};  ///< complete: what was asked for, or with `after` what is drafted ahead
  bool more = false;                    ///< there is more to draft or to compute
  std::int64_t behind = 0;              ///< rows of the replica of which the drafter has yet to compute K/V of its own
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
  /// More of a long message has come.
  void on_arriving(TimePoint now) { membership_.on_arriving(now); }
  /// @pre the turn came from take_output().
  void on_turn(const DraftTurn& turn, DraftProgress progress);
  /// Tells the coordinator to give no new sessions.
  void drain() { membership_.send({.body = Drain{}}); }

  struct Output : CoreOutput {
    std::vector<DraftWork> work;  ///< in the order it came
    /// Then one forward pass, for half of the sessions that draft at all, those that asked first: the verifier can then
    /// verify these while the others are drafted for, and where it rather waits for all of them, two passes take little
    /// longer than one. Who asks meanwhile is in the next pass, and whom the coordinator has gone on without is not.
    /// While nobody asks for drafts it is one step ahead instead, for one session so that nobody who asks waits long,
    /// the sessions in turn.
    std::vector<DraftTurn> pass;
  };
  /// All that has come up since the last call.
  Output take_output() { return {membership_.take_output(), std::exchange(work_, {}), std::exchange(pass_, {})}; }

  const Membership& membership() const { return membership_; }
  std::size_t session_count() const { return sessions_.size(); }
  /// Of its own, set aside for sessions.
  std::int64_t kv_bytes() const { return kv_bytes_; }

 private:
  static constexpr std::size_t kPassRowsMax = 16;  ///< bounds the memory of a pass: a row of scores may be a MiB
  struct Job {
    DraftTurn turn;
    std::size_t rows = 1;  ///< of a pass
    bool asked = true;     ///< its drafts are waited for; else it drafts ahead
  };
  struct Session {
    Position replica_end = 0;  ///< committed positions [0, replica_end) are held
    RoundId round{};           ///< the last Draft seen
    std::int64_t behind = 0;   ///< DraftProgress::behind, at most
    std::int64_t kv_bytes = 0;  ///< set aside for it
    std::uint64_t asked = 0;   ///< the number of the last one that asked for drafts, of all; 0: none has
    std::optional<Message> last_answer;
    TimePoint heard{};
  };

  Session* find_or_open(SessionId id, TimePoint now);
  /// Counts K/V of so many positions as the session's. @return kUnavailable where there is no memory for them
  Result<void> set_aside(Session& session, Position positions);
  /// Whether rows continue the replica, and are what the handshake promised.
  bool accept_rows(const Session& session, SessionId id, const KvRows& kv);
  /// Appends rows that accept_rows() likes and the replica does not have. @return whether there were any.
  bool extend(Session& session, SessionId id, KvRows kv);
  void on_draft(Message message, TimePoint now);
  /// Whether a Draft has what this drafter drafts from.
  Result<void> check_input(const Draft& draft, Position base) const;
  /// Has the session compute K/V of its rows while nobody asks.
  void catch_up(const Session& session, SessionId id);
  std::vector<DraftTurn> next_pass() const;
  /// Sessions that were among the last to ask for drafts.
  std::size_t drafting() const;
  std::vector<Job>::iterator find_job(SessionId id);
  void drop_job(SessionId id);
  void free(SessionId id);

  DrafterConfig config_;
  const DraftInput needs_;
  const bool own_kv_;  ///< passes compute K/V for the rows of its replicas
  Membership membership_;
  std::map<SessionId, Session> sessions_;
  std::int64_t kv_bytes_ = 0;  ///< of all of them
  std::uint64_t asked_ = 0;  ///< times that drafts were asked for
  std::vector<DraftWork> next_work_;
  /// One of a session at most, whose replica ends at its base once next_work_ is done; in the order of their turns.
  std::vector<Job> jobs_;
  // About to be handed over:
  std::vector<DraftWork> work_;
  std::vector<DraftTurn> pass_;
};

}  // namespace outrider
