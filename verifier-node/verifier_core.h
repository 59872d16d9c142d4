#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/wire/messages/membership.h"
#include "verifier-node/batch_window.h"
#include "verifier-node/prefix_cache.h"

namespace outrider {

struct Grammar;

struct VerifierConfig {
  LinkConfig link = {};
  std::int64_t rows_max = 256;  ///< rows of one forward, over all sessions
  /// Rows of one prompt per forward while other sequences decode and wait for the forward. If none waits, a prompt
  /// takes all of rows_max, since more rows share a read of the weights.
  std::int64_t prefill_chunk = 128;
  /// Of these, rows of prompts with requested log-probabilities: each row has logits.
  std::int64_t scored_rows_max = 32;
  Capacity capacity = {};
  Duration session_idle_max = std::chrono::seconds(120);  ///< for a session whose Free was lost
  /// Least number of common tokens at the start of two sequences for the second to wait for, copy or keep their K/V.
  /// Every chat starts with the same few tokens; waiting for those costs more than computing them.
  Position reuse_min = 32;
  /// Requests a grammar for a client's session. The returned function is polled. It returns null while the grammar is
  /// compiled, and the prompt waits; an error refuses the prompt; its destruction cancels the request. Empty: grammars
  /// are not supported here.
  using GrammarWait = std::function<Result<std::shared_ptr<const Grammar>>()>;
  std::function<GrammarWait(const std::string& grammar, const std::string& client)> want_grammar = {};
  /// Returns the soft tokens of a medium that no encoder has encoded, or an error. None: this verifier has no towers.
  std::function<Result<SoftTokens>(const WireMedium&)> soft_tokens = {};
};

/// A medium among a prompt's rows.
struct PromptMedium {
  WireMedium medium;
  Position end = 0;       ///< of its soft tokens, which begin at medium.first
  bool together = false;  ///< see SoftTokens
};

/// The start of a prompt whose K/V another sequence already has.
struct Reuse {
  SessionId from{};             ///< owner: a session or an ended sequence
  std::vector<TokenId> tokens;  ///< of the positions [0, size)
  std::int64_t answered = 0;    ///< see VerifyWork
  bool take = false;            ///< no other sequence needs them: move instead of copy
};

/// One segment of the next forward pass: rows of one session.
struct VerifyWork {
  SessionId session{};
  RoundId round{};
  Position base = 0;  ///< position of tokens[0]; earlier rows are committed
  std::vector<TokenId> tokens;
  bool prefill = false;       ///< tokens of a Prefill: all are committed, and only the last row's output is used
  std::int64_t answered = 0;  ///< of a prefill: number of tokens at the end that belong to the answer
  bool last = true;           ///< false: more of the prompt follows; no verdict yet
  /// Of a prefill: the prompt's tokens with requested log-probabilities; the first one follows tokens[0].
  std::vector<TokenId> scored = {};
  std::optional<Position> kv_from;
  WireForm wire = WireForm::kExact;             ///< of these rows
  SamplingParams sampling = {};                 ///< with a session's first rows; later the engine knows it
  std::shared_ptr<const Grammar> grammar = {};  ///< with a session's first rows
  std::vector<TokenId> stop_ids = {};           ///< with a session's first rows; see Prefill
  std::vector<Distribution> q = {};             ///< see Verify
  std::vector<std::int32_t> depths = {};        ///< see Verify
  std::optional<Reuse> reuse = {};              ///< with a session's first rows, which continue these
  std::vector<PromptMedium> media = {};         ///< of the whole prompt; may be outside these rows
  /// Keep a copy of the K/V after these prompt rows, under this number, until it is released.
  std::optional<SessionId> keep_as = {};
};

/// The engine's result of one VerifyWork.
struct VerifyResult {
  SessionId session{};
  RoundId round{};
  /// The core sets `committed`, `cached_tokens`, `waited_ns`, `batch_rows` and `pass`. For a prompt chunk that is not
  /// the last only `kv` counts.
  Verdict verdict = {};
  std::vector<TokenLogprobs> scores = {};  ///< of VerifyWork::scored
  std::optional<Error> error = {};         ///< no token could be chosen: the session is over
};

/// The sessions freed last, each up to a round, so that a late duplicate does not open a session again. A session that
/// was at another verifier may come back in a later round. Session numbers are never reused, so the oldest may be
/// forgotten once none of their messages can be in transit.
class FreedSessions {
 public:
  void add(SessionId id, RoundId round) {
    freed_.push_back({id, round});
    if (freed_.size() > kRemembered) freed_.pop_front();
  }
  bool contains(SessionId id, RoundId round) const {
    return std::any_of(freed_.begin(), freed_.end(),
                       [&](const auto& freed) { return freed.first == id && round <= freed.second; });
  }

 private:
  static constexpr std::size_t kRemembered = 1024;
  std::deque<std::pair<SessionId, RoundId>> freed_;
};

/// The verifier's side of all its sessions, as a pure state machine: messages, time and finished batches in; one Output
/// out. At most one batch is in progress at a time.
class VerifierCore {
 public:
  VerifierCore(const VerifierConfig& config, Hello hello);

  void on_message(Message message, TimePoint now);
  /// Handles the passing of time. If the engine is free and requests wait, this forms the next batch, unless waiting
  /// for more requests pays (BatchWindow): verifies go first, prompt chunks fill up.
  void on_tick(TimePoint now);
  /// Records that more of a long message arrived.
  void on_arriving(TimePoint now) { membership_.on_arriving(now); }
  void on_batch_done(std::vector<VerifyResult> results, TimePoint now);
  /// Tells the coordinator to send no new sessions.
  void drain() { membership_.drain(); }

  struct Output : CoreOutput {
    // None of these while an earlier batch is in progress.
    /// Ended sessions and the numbers that their K/V get, before anything else.
    std::vector<std::pair<SessionId, SessionId>> renamed;
    /// Sessions whose K/V the engine drops before it runs the batch, which may need their memory.
    std::vector<SessionId> released;
    std::vector<VerifyWork> batch;  ///< rows of the next forward; on_batch_done() has the result
  };
  /// Returns all results since the last call.
  Output take_output();

  const Membership& membership() const { return membership_; }
  /// Number of sessions, including sessions whose grammar is being compiled: a drain waits for all.
  std::size_t session_count() const { return sessions_.size() + held_.size(); }
  /// Returns the K/V memory reserved for sessions; cached_bytes() returns the memory of ended sequences.
  std::int64_t kv_bytes() const { return kv_bytes_; }
  std::int64_t cached_bytes() const { return cache_.bytes(); }

 private:
  /// Progress of a session's prompt.
  struct Prompt {
    std::int64_t done = 0;       ///< tokens computed or reused; 0 again after its verdict
    Position cached_tokens = 0;  ///< reused ones of these
    Position kv_sent = 0;        ///< end of the donor rows that were sent, or are not needed
    Position keep_at = 0;        ///< number of first rows to keep a copy of; 0: none
    bool scored = false;         ///< log-probabilities of its tokens are requested: all of them are computed
  };
  struct Session {
    RoundId round{};                    ///< of the request in work, or of the last verdict
    std::vector<TokenId> committed;     ///< tokens with valid K/V rows
    Position written = 0;               ///< end of the rows ever written, rejected ones included
    std::optional<VerifyWork> request;  ///< in work; has all of a prompt's tokens
    Prompt prompt;
    std::int64_t kv_bytes = 0;      ///< reserved for it
    std::string cache_scope;        ///< see Prefill
    std::vector<WireMedium> media;  ///< see Prefill
    bool rejection = false;         ///< its rule is kRejection
    std::int64_t rows_out = 0;      ///< in the current or next batch; 0: none
    bool freed = false;
    std::optional<Message> last_verdict;  ///< to answer a repeated request
    TimePoint since{};  ///< when its request began to wait for a forward pass; without one, of its last message
  };
  /// A batch being assembled.
  struct Batch {
    std::vector<VerifyWork> work;
    std::int64_t room = 0;  ///< free rows
    std::int64_t prompt_rows = 0;
    std::int64_t scored_room = 0;    ///< free rows for prompts with scored tokens
    bool medium_kept_out = false;    ///< a medium that must be in one forward had no room
    std::vector<KeptSequence> kept;  ///< available after the batch, so not for its own prompts
  };
  /// The last batch.
  struct Forward {
    bool out = false;  ///< in progress, or about to be
    TimePoint began{};
    std::int64_t rows = 0;
    bool prompts = false;          ///< some of its rows are of prompts
    std::int64_t number = 0;       ///< Verdict::pass
    std::vector<VerifyWork> work;  ///< about to be handed over
  };
  /// Numbers of kept prefixes, and of ended sequences whose session came back; those of sessions are lower.
  static constexpr std::uint64_t kFirstKept = std::uint64_t{1} << 63;

  /// A Prefill that waits.
  struct Held {
    Message message;
    VerifierConfig::GrammarWait grammar;  ///< empty: none
  };
  /// Admits a prompt, or holds it until that is possible.
  void admit(Message message, TimePoint now);
  /// Admits a prompt. @return false while its grammar is being compiled, or rows of the session's earlier stay here are
  /// in the batch
  bool try_admit(const Held& held, TimePoint now);
  void on_prefill(const Message& message, std::shared_ptr<const Grammar> grammar, TimePoint now);
  /// Handles a repeated request: sends the verdict again, or a heartbeat while the request is in work.
  void on_repeated(const Session& session, const Message& request);
  void on_verify(const Message& message, const Verify& verify, TimePoint now);
  /// Checks that tokens are in the vocabulary. @param what  the tokens' name in the error message
  Result<void> check_ids(const char* what, const std::vector<TokenId>& tokens) const;
  Result<void> check_tokens(const std::vector<TokenId>& tokens, Position base) const;
  /// Returns the soft tokens of one of a prompt's media.
  Result<SoftTokens> soft_tokens(const WireMedium& medium) const;
  /// Returns a prompt's media, each with its rows.
  Result<std::vector<PromptMedium>> place_media(const Prefill& prefill) const;
  /// Reserves memory for `positions` and the media of a session with `held` reserved bytes.
  /// @return the session's reservation then
  Result<std::int64_t> set_aside(std::int64_t held, Position positions, const std::vector<WireMedium>& media);
  void fail(const Message& request, const Error& error) {
    membership_.answer(request, Failed{error.code, error.message});
  }
  void free(SessionId id);
  /// Forgets a session; the cache keeps its sequence if that is worthwhile.
  void release(std::map<SessionId, Session>::iterator session, bool keep);
  void form_batch(TimePoint now);
  /// Returns how long waiting requests should wait for others that are about to arrive.
  Duration window(TimePoint now) const;
  /// Moves waiting requests that fit into the batch: prompts, or verifies.
  void take_requests(bool prefill, Batch& batch);
  /// Most rows of one prompt in the next forward.
  std::int64_t prompt_rows_max() const;
  /// Returns the next rows of a prompt. @return none if it waits for another one (begin_prompt)
  std::optional<VerifyWork> next_chunk(Session& session, Batch& batch);
  /// Returns how many of `count` rows after the first `done` may be computed now: soft tokens that belong together are
  /// not split, so the result may exceed `count`; 0 if there is not enough room.
  std::int64_t whole_media(const VerifyWork& request, std::int64_t done, std::int64_t count, std::int64_t room) const;
  /// Chooses what a new prompt reuses, and stores that in *work.
  /// @return false to wait: another prompt in progress will soon have a longer common prefix
  bool begin_prompt(Session& session, VerifyWork* work);
  /// Drops the least recently used sequences until sessions and cache fit the memory. Rows that the batch would copy
  /// from them are moved instead.
  void trim_cache(std::vector<VerifyWork>& batch);
  /// Adds the tokens of the rows committed by the engine to the session's.
  void commit(Session& session, const VerifyResult& result, std::int64_t rows);
  void forget_all();

  VerifierConfig config_;
  Membership membership_;
  std::map<SessionId, Session> sessions_;
  std::map<SessionId, Held> held_;
  std::deque<SessionId> queue_;  ///< sessions with a request not in the batch, oldest first
  FreedSessions freed_;
  PrefixCache cache_;
  BatchWindow window_{config_.rows_max};
  Forward forward_;
  std::optional<TimePoint> due_;
  bool prompts_first_ = false;  ///< in the next batch: verifies left less than a chunk of a full batch
  std::int64_t kv_bytes_ = 0;   ///< sum over the sessions that are not freed
  std::uint64_t next_kept_ = kFirstKept;
  std::vector<std::pair<SessionId, SessionId>> renamed_;
  std::vector<SessionId> released_;
};

}  // namespace outrider
