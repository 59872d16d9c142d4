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
#include "common/wire/messages/soft_tokens.h"
#include "verifier-node/batch_window.h"
#include "verifier-node/prefix_cache.h"

namespace outrider {

struct Grammar;

struct VerifierConfig {
  LinkConfig link = {};
  std::int64_t rows_max = 256;       ///< rows of one forward, all sessions together
  std::int64_t prefill_chunk = 128;  ///< rows of one prompt per forward
  /// Of these, rows of all prompts whose tokens' log-probabilities are wanted: each has logits.
  std::int64_t scored_rows_max = 32;
  Capacity capacity = {};
  Duration session_idle_max = std::chrono::seconds(120);  ///< for a session whose Free was lost
  /// Tokens that two sequences must have in common at their start for the second to wait for, copy or keep
  /// their K/V. Every chat starts with the same few; to wait for those costs more than to compute them.
  Position reuse_min = 32;
  /// Asks for a grammar that a session of a client wants. What comes back is asked again and again: null while it is
  /// being made ready, for which the prompt waits; an error refuses the prompt; once it is gone, nobody wants the
  /// grammar any more. None: no grammar can be followed here.
  using GrammarWait = std::function<Result<std::shared_ptr<const Grammar>>()>;
  std::function<GrammarWait(const std::string& grammar, const std::string& client)> want_grammar = {};
  /// What a picture or a sound becomes that no encoder has encoded, or why it becomes nothing. None: this verifier has
  /// no towers.
  std::function<Result<SoftTokens>(const WireMedium&)> soft_tokens = {};
};

/// A picture or a sound among a prompt's rows.
struct PromptMedium {
  WireMedium medium;
  Position end = 0;       ///< of its soft tokens, which begin at medium.first
  bool together = false;  ///< as SoftTokens
};

/// The start of a prompt whose K/V another sequence has already.
struct Reuse {
  SessionId from{};             ///< whose: a session's, or those of a sequence that has ended
  std::vector<TokenId> tokens;  ///< of the positions [0, size)
  std::int64_t answered = 0;    ///< as in VerifyWork
  bool take = false;            ///< nobody else needs them: they are not kept
};

/// One segment of the next forward pass: rows of one session.
struct VerifyWork {
  SessionId session{};
  RoundId round{};
  Position base = 0;  ///< position of tokens[0]; rows before it are committed
  std::vector<TokenId> tokens;
  bool prefill = false;       ///< tokens of a Prefill: all are committed, only the last row has a use
  std::int64_t answered = 0;  ///< of a prefill: so many tokens at the end are the answer's, the others the prompt's
  bool last = true;           ///< false: a prompt goes on; no verdict yet
  /// Of a prefill: the prompt's tokens whose log-probabilities are wanted; the first one follows tokens[0].
  std::vector<TokenId> scored = {};
  std::optional<Position> kv_from;
  WireForm wire = WireForm::kExact;             ///< of these rows
  SamplingParams sampling = {};                 ///< with a session's first rows; afterwards the engine knows it
  std::shared_ptr<const Grammar> grammar = {};  ///< likewise, of these
  std::vector<TokenId> stop_ids = {};           ///< likewise, as in Prefill
  std::vector<Distribution> q = {};             ///< as in Verify
  std::vector<std::int32_t> depths = {};        ///< likewise
  std::optional<Reuse> reuse = {};              ///< with a session's first rows, which continue these
  std::vector<PromptMedium> media = {};         ///< of the whole prompt; its own rows are among them or not
  /// Keep a copy of the K/V as they are after these prompt rows, under this number, until it is released.
  std::optional<SessionId> keep_as = {};
};

/// What the engine found.
struct VerifyResult {
  SessionId session{};
  RoundId round{};
  /// `committed`, `cached_tokens`, `waited_ns`, `batch_rows` and `pass` are the core's to fill in. Of a prompt chunk
  /// that is not the last only `kv` counts.
  Verdict verdict = {};
  std::vector<TokenLogprobs> scores = {};  ///< of VerifyWork::scored
  std::optional<Error> error = {};         ///< no token could be chosen: the session is over
};

/// The sessions freed last, each up to a round, so that a late duplicate does not open one again; but a session that
/// went elsewhere may come back in a later round. Session numbers are never used twice, so forgetting the oldest is
/// safe once no message of theirs can be on its way.
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

/// The verifier's side of all its sessions, as a pure state machine: messages, time and finished batches in; one
/// Output out. At most one batch is out at a time.
class VerifierCore {
 public:
  VerifierCore(const VerifierConfig& config, Hello hello);

  void on_message(Message message, TimePoint now);
  /// What is due by now. If the engine is free and somebody waits, that is also the next batch, unless it is worth to
  /// wait for more (BatchWindow): verifies go first, prompt chunks fill up.
  void on_tick(TimePoint now);
  /// More of a long message has come.
  void on_arriving(TimePoint now) { membership_.on_arriving(now); }
  void on_batch_done(std::vector<VerifyResult> results, TimePoint now);
  /// Tells the coordinator to give no new sessions.
  void drain() { membership_.send({.body = Drain{}}); }

  struct Output : CoreOutput {
    /// Sessions whose K/V the engine drops, before it runs the batch, which may need their memory. None while a batch
    /// that was handed over before is out.
    std::vector<SessionId> released;
    std::vector<VerifyWork> batch;  ///< rows of the next forward; on_batch_done() answers
  };
  /// All that has come up since the last call.
  Output take_output();

  const Membership& membership() const { return membership_; }
  std::size_t session_count() const { return sessions_.size(); }
  /// K/V memory set aside for sessions, and taken by sequences that have ended.
  std::int64_t kv_bytes() const { return kv_bytes_; }
  std::int64_t cached_bytes() const { return cache_.bytes(); }

 private:
  /// How far a session's prompt is.
  struct Prompt {
    std::int64_t done = 0;       ///< tokens already forwarded, or reused; 0 again once it has its verdict
    Position cached_tokens = 0;  ///< of these, reused
    Position kv_sent = 0;        ///< end of the donor rows that nobody needs, or that were sent
    Position keep_at = 0;        ///< keep a copy of the first so many rows; 0: of none
    bool compute_all = false;    ///< as its Prefill says
    bool scored = false;         ///< log-probabilities of its tokens are wanted
  };
  struct Session {
    RoundId round{};                    ///< of the request in work, or of the last verdict
    std::vector<TokenId> text;          ///< the committed tokens: those whose K/V rows are valid
    Position written = 0;               ///< end of the rows ever written, rejected ones included
    std::optional<VerifyWork> request;  ///< in work; a prompt's tokens are all here
    Prompt prompt;
    std::int64_t kv_bytes = 0;      ///< set aside for it
    std::string cache_scope;        ///< as its Prefill says
    std::vector<WireMedium> media;  ///< likewise
    bool rejection = false;         ///< its rule
    std::int64_t rows_out = 0;      ///< in the batch that is out, or about to be; 0: none
    bool freed = false;
    std::optional<Message> last_verdict;  ///< to answer a repeated request
    TimePoint heard{};
  };
  /// A batch in the making.
  struct Batch {
    std::vector<VerifyWork> work;
    std::int64_t room = 0;  ///< rows that it still takes
    std::int64_t prompt_rows = 0;
    std::int64_t scored_room = 0;  ///< rows that it still takes of prompts whose tokens are scored
    bool medium_kept_out = false;  ///< one that must be in one forward had no room
    std::vector<KeptText> kept;    ///< there once the batch has run, so not for its own prompts
  };
  /// The last batch.
  struct Forward {
    bool out = false;  ///< or about to be
    TimePoint began{};
    std::int64_t rows = 0;
    std::int64_t number = 0;       ///< Verdict::pass
    std::vector<VerifyWork> work;  ///< about to be out
  };
  /// Numbers of kept starts of sequences; those of sessions are below.
  static constexpr std::uint64_t kFirstKept = std::uint64_t{1} << 63;

  /// A Prefill whose grammar is being made ready.
  struct Held {
    Message message;
    VerifierConfig::GrammarWait grammar;
  };
  /// Lets a prompt in, or holds it until its grammar is ready.
  void admit(Message message, TimePoint now);
  /// @return false while its grammar is being made ready.
  bool let_in(const Held& held, TimePoint now);
  void on_prefill(const Message& message, std::shared_ptr<const Grammar> grammar, TimePoint now);
  /// It was sent before: sends the verdict once more, or says that it is in work.
  void on_repeated(const Session& session, const Message& request);
  void on_verify(const Message& message, const Verify& verify, TimePoint now);
  /// @param what  the tokens' name in the message
  Result<void> check_ids(const char* what, const std::vector<TokenId>& tokens) const;
  Result<void> check_tokens(const std::vector<TokenId>& tokens, Position base) const;
  /// What one of a prompt's pictures and sounds becomes, or has become.
  Result<SoftTokens> soft_tokens(const WireMedium& medium) const;
  /// A prompt's pictures and sounds, each with its rows.
  Result<std::vector<PromptMedium>> place_media(const Prefill& prefill) const;
  /// Sets memory aside for `positions` of a session that has `held` bytes already. @return what it has then.
  Result<std::int64_t> set_aside(std::int64_t held, Position positions);
  void fail(const Message& request, const Error& error) {
    membership_.answer(request, Failed{error.code, error.message});
  }
  void free(SessionId id);
  /// Forgets a session; a sequence worth it stays in the cache.
  void release(std::map<SessionId, Session>::iterator session, bool keep);
  void form_batch(TimePoint now);
  /// How long the requests that wait should still do so, for others that are about to come.
  Duration window(TimePoint now) const;
  /// Moves what fits of the requests that wait into the batch: prompts, or verifies.
  void take_requests(bool prefill, Batch& batch);
  /// The next rows of a prompt. @return none if it waits for another one (begin_prompt).
  std::optional<VerifyWork> next_chunk(Session& session, Batch& batch);
  /// How many of `count` rows after the first `done` may be computed now: soft tokens that belong together are not
  /// parted, and so they may be more than `count`; 0 if they are more than there is room for.
  std::int64_t whole_media(const VerifyWork& request, std::int64_t done, std::int64_t count, std::int64_t room) const;
  /// Decides what a prompt that has not begun reuses, and says so in *work.
  /// @return false if another prompt that is under way will soon have more of it: wait.
  bool begin_prompt(Session& session, VerifyWork* work);
  /// Drops the sequences used longest ago until sessions and cache fit the memory. What the batch wants to copy
  /// from them it takes instead.
  void trim_cache(std::vector<VerifyWork>& batch);
  /// Adds what the engine has committed to the session's text.
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
  bool prompts_first_ = false;  ///< in the next batch: verifies left them less than a chunk of a full one
  std::int64_t kv_bytes_ = 0;   ///< sum over the sessions that are not freed
  std::uint64_t next_kept_ = kFirstKept;
  std::vector<SessionId> released_;
};

}  // namespace outrider
