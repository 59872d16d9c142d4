#pragma once

#include <map>
#include <optional>
#include <vector>

#include "common/protocol/worker_link.h"

namespace outrider {

struct DrafterConfig {
  LinkConfig link = {};
  std::int64_t sessions_max = 256;
  Duration session_idle_max = std::chrono::seconds(120);
};

/// Work for the assistant engine, in this order.
struct DraftWork {
  enum class Kind { kExtend, kDraft, kRelease } kind = Kind::kExtend;
  SessionId session{};
  RoundId round{};
  Position base = 0;  ///< kDraft: the replica's length
  KvRows kv = {};     ///< kExtend: rows to append to the replica
  TokenId token = 0;  ///< kDraft, as all below
  std::int32_t draft_length = 0;
  WireTensor hidden = {};
  std::optional<SamplingParams> sampling = {};  ///< as in Draft
  std::int64_t index = 0;
  bool want_state = false, want_q = false;
};

/// Answer to a kDraft.
struct Drafts {
  std::vector<TokenId> tokens;
  std::vector<Distribution> q;           ///< as in Candidates
  std::int64_t draft_ns = 0;             ///< in assistant forwards
  std::optional<WireTensor> state = {};  ///< as in Candidates
};

/// The drafter's side of all its sessions, as a pure state machine. It keeps the books on which
/// committed positions the replica holds; the rows themselves are the engine's. A replica only grows:
/// the verifier never sends a row that may be rejected.
class DrafterCore {
 public:
  DrafterCore(const DrafterConfig& config, Hello hello);

  void on_message(Message message, TimePoint now);
  void on_tick(TimePoint now);
  /// Rows and releases in the order they came, then the draft that was asked for first: one at a time, because while it
  /// is made the coordinator may go on without those that wait. They are then dropped, and their rows are there
  /// already.
  std::vector<DraftWork> take_work();
  /// Answers a kDraft. @pre the work came from take_work().
  void on_drafted(const DraftWork& work, Drafts drafts);

  std::vector<Outgoing> take_outgoing() { return std::exchange(outgoing_, {}); }
  std::vector<Notice> take_notices() { return std::exchange(notices_, {}); }
  const WorkerLink& link() const { return link_; }
  std::size_t session_count() const { return sessions_.size(); }
  void drain() { outgoing_.push_back({"", {.body = Drain{}}}); }

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
  PairFacts facts_;
  WorkerLink link_;
  std::map<SessionId, Session> sessions_;
  std::vector<DraftWork> rows_;  ///< kExtend and kRelease
  std::vector<DraftWork>
      drafts_;  ///< kDraft, one of a session at most: the replica ends at its base once rows_ are done
  std::vector<Outgoing> outgoing_;
  std::vector<Notice> notices_;
};

}  // namespace outrider
