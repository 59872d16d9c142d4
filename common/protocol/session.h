#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/policy/draft_table.h"
#include "common/policy/policies.h"
#include "common/protocol/auditor.h"
#include "common/protocol/draft_ahead.h"
#include "common/protocol/fleet.h"
#include "common/protocol/rejection.h"
#include "common/protocol/round_drafts.h"

namespace outrider {

/// All that follows from what a coordinator was told, in the order in which it is to be done: messages first.
struct CoordinatorOutput : CoreOutput {
  /// One of every round that lost a draft, but for stepwise texts, whose drafts are the client's.
  std::vector<Rejection> rejections = {};
};

/// What becomes of a text whose verifier dies, drains or is of no use.
struct FailoverConfig {
  Duration wait = std::chrono::seconds(30);  ///< for another verifier of the class to join: a restart and its loading
  /// Verifiers that one text may lose. Few: a text that makes verifiers crash must not take down all there are. Those
  /// that drain do not count.
  int limit = 2;
  /// Where none of the class has joined after `wait`, it goes on at any other: its bytes may differ from there on.
  bool allow_inexact = false;
};

/// What a session has at hand while it deals with one event.
struct Desk {
  Fleet& fleet;
  Policies& policies;
  const FailoverConfig& failover;
  FailoverCounts& failovers;
  CoordinatorOutput& output;
  TimePoint now;
  bool want_rejections = false;
  // CoordinatorConfig's:
  const DraftTable* table = nullptr;
  int drafters_per_text = 1;

  void send(const PeerId& to, Message message) const { output.send.push_back({to, std::move(message)}); }
};

/// One text's life at the coordinator: its prompt, then round after round
///
///   Draft(last token, hidden row) -> Candidates -> Verify(last token, drafts) -> Verdict
///
/// The drafter drafts on while the Verify is out, for the most probable outcomes (Draft::ahead). Where the Verdict is
/// one of these, the next round begins with the drafts there. Of several drafters all are asked, and who answers first
/// has drafted for the round.
///
/// The text is the verifier's alone. Whatever a drafter does or fails to do, the session goes on: at worst it verifies
/// the last token by itself, which is plain decoding. A text whose verifier leaves it starts once more, as it once
/// started: another verifier gets all of its tokens whose K/V the last one had, and what was asked last is asked again.
/// Only a session itself changes its phase and its part of the fleet's books.
class Session {
 public:
  enum class Phase {
    kWaiting,    ///< in line; has no verifier and no drafter
    kMoving,     ///< needs a verifier, since the one that it had has left it
    kEncoding,   ///< has a verifier; an Encode is out to an encoder, and repeated until its answer is there
    kPrefill,    ///< the Prefill is out, and repeated until its Verdict is there
    kPaused,     ///< stepwise: a round is open, nothing is out, the client is to take a Step
    kDrafting,   ///< a Draft is out to a drafter whose replica ends at base(): Candidates, NeedKv or the time end it
    kVerifying,  ///< a Verify is out, and repeated until its Verdict is there
    kEnded,      ///< client and workers have been told
  };

  /// @param request_id  the client's number for it
  Session(SessionId id, const PeerId& client, SessionId request_id, Generate request, TimePoint now);
  /// One whose client is the coordinator itself ("").
  Session(SessionId id, const Audit& audit, TimePoint now);

  const PeerId& client() const { return client_.peer; }
  SessionId request_id() const { return client_.request; }
  /// What its prompt takes, pictures included.
  std::int64_t prompt_bytes() const;
  TimePoint opened() const { return books_.opened; }
  Phase phase() const { return phase_; }
  /// How long a stepwise text has had nothing to do but wait for its client.
  Duration resting(TimePoint now) const { return phase_ == Phase::kPaused ? now - entered_ : Duration::zero(); }
  /// Whether the token after the prompt is there.
  bool has_token() const { return answered() > 0; }
  /// Whether a verifier here has given it a token, or has caught up with an answer that began elsewhere.
  bool has_started() const { return has_token() && !failover_.elsewhere; }
  /// It has ended: what another verifier would have to say the same to. None for a text that is not one verifier's
  /// alone: which failed, moved or came from elsewhere, or that drafts have a say in.
  std::optional<Audit> audit() const;
  /// Whether its request can be answered at all, and by a model with these facts, if they are known.
  Result<void> check(const PairFacts* facts) const;

  /// Its turn has come, or it is moving. @return false if no verifier has room for it now; else it has begun, or
  /// failed.
  bool start(const Desk& desk);
  /// Where it may start.
  Fleet::Wanted wanted() const;
  /// A worker's message about it; one that it has left, or of another round, is late. @return false where the message
  /// makes no sense.
  bool on_worker(const Desk& desk, const PeerId& from, Message message);
  bool is_drafter(const PeerId& peer, RoundId round) { return replica_of(peer) != nullptr && round == round_.id; }
  /// @return false where it was refused.
  bool on_step(const Desk& desk, const Step& step);
  void on_cancel(const Desk& desk, const Cancel& cancel);
  /// The fleet has lost a worker. @param what  became of it
  void on_worker_gone(const Desk& desk, const PeerId& peer, const std::string& what);
  void on_tick(const Desk& desk);
  /// When on_tick() is due next, if drafts are not worth a longer wait.
  std::optional<TimePoint> deadline() const;
  /// `bytes` of a message of its own went out.
  void on_sent(const Message& message, std::size_t bytes);
  /// What it adds to its workers' books.
  void add_to(std::map<PeerId, Load>& loads) const;
  /// Ends it: tells the workers to forget it, and the client `last`.
  void finish(const Desk& desk, Body last);

 private:
  /// What a drafter of this text holds of it.
  struct Replica {
    PeerId drafter;
    Position end = 0;         ///< K/V rows that it was sent
    std::int64_t guided = 0;  ///< tokens of the answer at its last drafts: it knows `sampling`; 0: it does not
    bool asked = false;       ///< for this round's drafts, and has not answered
  };

  static bool is_in_round(Phase phase) { return phase == Phase::kDrafting || phase == Phase::kVerifying; }
  void enter(const Desk& desk, Phase phase);
  void reply(const Desk& desk, Body body) const {
    desk.send(client_.peer, {.session = client_.request, .body = std::move(body)});
  }
  void fail(const Desk& desk, Errc code, std::string message) { finish(desk, Failed{code, std::move(message)}); }

  // ---- the text ----
  /// Position of the last emitted token: the first one whose K/V the target does not have yet. Where nobody verifies,
  /// the target goes no further than the prompt.
  Position base() const { return request_.unverified ? prompt_.size : std::ssize(text_) - 1; }
  std::int64_t answered() const { return std::ssize(text_) - prompt_.size; }
  std::int64_t tokens_left() const { return request_.max_tokens - answered(); }
  /// Drafts that the answer, and so the context, has room for; a verdict adds a token of its own.
  std::int64_t drafts_left() const { return tokens_left() - (request_.unverified ? 0 : 1); }
  /// Under the rules that are not exact for a seed: measured times must then have none in how many there are.
  bool drafts_have_a_say() const {
    return !request_.sampling.greedy() && request_.sampling.rule != SamplingRule::kMatch;
  }
  /// Whoever writes a part of the text must be somebody.
  bool wants_proven_drafter() const { return drafts_have_a_say() || request_.unverified; }
  /// Adds tokens to the answer up to the first stop, and sends them. Ends the session if they end the answer.
  void emit(const Desk& desk, std::vector<TokenId> fresh, std::vector<TokenLogprobs> logprobs,
            std::optional<RoundReport> round);
  /// Adds what the client does not know yet and another coordinator would have to.
  void tell_how_to_go_on(const Desk& desk, Tokens& tokens);

  // ---- its encoder ----
  /// Whether it has pictures or sounds that nobody has encoded.
  bool has_media() const { return encoding_.done < request_.media.size(); }
  /// Lets an encoder have what is not encoded yet.
  void encode_at(const Desk& desk, const PeerId& encoder);
  void ask_encoder(const Desk& desk);
  /// Takes it out of its encoder's books.
  void leave_encoder(const Desk& desk);
  /// Its encoder is dead, or of no use.
  void lose_encoder(const Desk& desk, Error why);
  void distrust_encoder(const Desk& desk, Error why);
  /// Another encoder goes on, or the verifier's own towers; else it waits for an encoder.
  void encode_elsewhere(const Desk& desk, Error why);
  bool on_encoder(const Desk& desk, Message message);
  void on_encoded(const Desk& desk, Encoded encoded);

  // ---- its workers ----
  /// Lets its verifier have the prompt.
  void send_prefill(const Desk& desk);
  bool on_verifier(const Desk& desk, Message message);
  /// Hands them on to the client. Some that are missing end the round when the Verdict comes.
  void on_prompt_scores(const Desk& desk, PromptScores scores);
  bool on_drafter(const Desk& desk, Replica& replica, Message message);
  /// K/V rows that it can come to need. Nobody knows how long a stepwise text gets: its room grows with each verify.
  Position positions() const;
  /// No verifier that it could start at has been there for too long.
  void on_alone(const Desk& desk, Duration alone);
  /// Takes it out of its verifier's books.
  void leave_verifier(const Desk& desk);
  /// Likewise if that one drains and there is another to go on at; else it may end where it is.
  void leave_draining_verifier(const Desk& desk);
  /// Its verifier is dead or of no use: what it had is needed from another, now or when it is to verify next.
  void lose_verifier(const Desk& desk, Error why);
  /// Likewise of one that is there and answers with nothing of use: others are preferred until it answers again.
  void distrust_verifier(const Desk& desk, Error why);
  /// Looks for another verifier, and keeps looking until it is there.
  void move_to_another_verifier(const Desk& desk);
  /// Another verifier has caught up with the last one: asks it what that one was asked.
  void on_moved(const Desk& desk, Verdict verdict);
  /// Likewise with the coordinator that began it: opens its first round here.
  void on_resumed(const Desk& desk, Verdict verdict);
  Result<void> check_resumed() const;
  void count_failover(const Desk& desk);
  /// Counts K/V of `positions` as taken from the memory of its verifier.
  void set_aside(const Desk& desk, Position positions);
  /// Asks whom the phase says: its encoder, else its verifier.
  void ask(const Desk& desk, Position base, Body body);
  void repeat_request(const Desk& desk);
  /// So many drafters it is to have. One where it would depend on who answers first what the text becomes.
  int drafters_wanted(const Desk& desk) const;
  Replica* replica_of(const PeerId& drafter);
  bool can_draft(const Desk& desk) const;
  std::vector<PeerId> drafters() const;
  void assign_drafters(const Desk& desk);
  /// Replaces those that drain, or that are of no use where there are others.
  void renew_drafters(const Desk& desk);
  void release_drafter(const Desk& desk, PeerId drafter, bool tell);
  /// One of its drafters is gone: the round need not wait for it any more.
  void lose_drafter(const Desk& desk, const PeerId& drafter);
  /// Whether one that was asked for this round's drafts has not answered yet.
  bool awaits_drafts() const { return std::ranges::any_of(workers_.replicas, &Replica::asked); }
  /// First position whose rows one of its drafters needs; none: nobody drafts.
  std::optional<Position> rows_wanted(const Desk& desk) const;
  /// What its drafters want their rows rounded to: of several the least.
  WireForm wire_form(const Desk& desk) const;
  /// A round is over: what its bytes to the drafter cost.
  void weigh_wire(const Desk& desk);
  /// Hands K/V rows on to the drafters whose replicas they continue.
  void forward(const Desk& desk, KvRows kv);
  /// Whether rows are those that the last round committed, not a prompt's or a late joiner's history.
  bool is_of_last_round(const KvRows& kv) const;

  // ---- a round ----
  /// Opens a round, and drafts and verifies unless the client takes the steps itself.
  void next_round(const Desk& desk, KvRows kv);
  /// Drafts this round may have.
  std::int64_t draft_room() const;
  /// Lets the policy choose a length up to `room`, and drafts.
  void draft(const Desk& desk, std::int64_t room);
  /// Drafts if there is somebody to draft, else goes on as without drafts.
  void ask_drafter(const Desk& desk, std::int64_t draft_length);
  void send_draft(const Desk& desk, const Replica& replica, std::int64_t draft_length, int guesses, bool has_drafts);
  void on_candidates(const Desk& desk, const PeerId& drafter, Candidates candidates);
  /// Whether drafts are tokens of such a model, with as many distributions or none, and a chain or a tree.
  static bool is_sound(const Candidates& drafts, const PairFacts& facts);
  /// Of one peer the same once a minute, whichever session saw it.
  void warn_of(const Desk& desk, const PeerId& peer, std::string text) const;
  void warn_of_drafts(const Desk& desk, const PeerId& drafter, const Candidates& drafts, const PairFacts& facts) const;
  /// Whether the policy may have token trees drafted: not where drafts have a say in the text, and measured times
  /// would.
  bool may_draft_trees() const;
  /// Whether its drafter may draft ahead, where that pays: unless the request says so, one that is a millisecond away
  /// or more. What is nearer mostly shares the verifier's machine and takes its cores, and elsewhere hides no more time
  /// than staler drafts lose (docs/lab/ahead.md). Their heartbeats tell: waits of a busy machine are not in these.
  bool may_draft_ahead(const Desk& desk) const;
  /// Outcomes of a round of so many drafts for which the drafter is to draft ahead.
  int guesses_wanted(const Desk& desk, std::int64_t draft_length) const;
  /// Begins the round with drafts that were made ahead, `draft_length` of them at most. @return how many there were; 0
  /// if none.
  std::int64_t take_ahead(std::int64_t draft_length);
  /// Drafts that nobody asked for, of the round that begins at `base`.
  void on_ahead(const Desk& desk, const PeerId& drafter, Position base, Candidates guess);
  void on_drafter_late(const Desk& desk);
  /// What one of the sources that cost nothing has to say after a text of this session.
  Candidates look_up(const Desk& desk, DraftSource source, std::span<const TokenId> text, std::int64_t most) const;
  /// Adds to the round's drafts what the request wants looked up: where they end, and beside them.
  void add_sources(const Desk& desk);
  /// The text, and the first choices among the round's drafts as if they held.
  std::vector<TokenId> text_with_drafts() const;
  /// What is looked up behind that text.
  Candidates look_up_behind(const Desk& desk, DraftSource source, std::span<const TokenId> text,
                            std::int64_t most) const;
  /// Adds of that as much as `auto` finds worth its rows.
  void extend_drafts(const Desk& desk);
  /// The drafter was asked, and this is what came of it.
  void judge_drafter(const Desk& desk, const PeerId& drafter, bool held) const;
  /// There will be no more drafts in this round than those at hand: verifies, or shows them to the client. Ends an
  /// unverified session: nobody else could go on.
  void end_drafting(const Desk& desk);
  void send_verify(const Desk& desk);
  void on_verdict(const Desk& desk, Verdict verdict);
  Result<void> check(const Verdict& verdict, const Hello& verifier) const;
  void account(const Desk& desk, const Verdict& verdict);
  /// The name of who made the round's drafts, where the client does not know it yet.
  std::string untold_drafter(const Desk& desk);
  /// @param kept  the sources of the drafts that held
  void count_drafts(std::span<const DraftSource> kept);
  bool logs_rejections(const Desk& desk) const {
    return desk.want_rejections && !request_.unverified && !request_.stepwise;
  }
  void log_rejection(const Desk& desk, const Verdict& verdict) const;

  struct Client {
    PeerId peer;
    SessionId request;  ///< its own number for this text
  };
  struct Prompt {
    Position size;                             ///< so many tokens of the text
    std::vector<std::uint64_t> prefixes = {};  ///< once a verifier is looked for
  };
  struct Workers {
    PeerId verifier = {};       ///< "" while there is none
    std::int64_t kv_bytes = 0;  ///< set aside for it at its verifier
    std::vector<Replica> replicas = {};
    Position scored = 1;            ///< end of the prompt's tokens that need no log-probabilities or have them
    bool no_drafter = false;        ///< one had no room for it, against our books: it gets none any more
    DraftAhead ahead = {};          ///< the drafters', unasked
    TimePoint alone_since{};        ///< waiting or moving: no verifier was there that it could start at
    std::string told_drafter = {};  ///< its name, as the client knows it (RoundReport)
  };
  /// What the verifier, or the encoder before it, was asked last.
  struct Request {
    std::optional<Message> message;
    TimePoint sent{};     ///< its last repeat
    int unheard = 0;      ///< repeats since anything was said about it
    int keep_alives = 0;  ///< repeats since the client's last step
  };
  /// Of its pictures and sounds, which one encoder after the other may encode.
  struct Encoding {
    PeerId encoder = {};   ///< while it is kEncoding
    std::size_t done = 0;  ///< so many of its media are soft tokens already
    int lost = 0;          ///< encoders that died, or were of no use
    /// Of who has encoded some of them, or all, a verifier perhaps: whoever encodes them again must make the same bits.
    std::string encoding_class = {};
  };
  /// How it goes on without the verifier that it had.
  struct Failover {
    std::optional<std::string> numeric_class = {};  ///< of the verifiers that may go on; none: any
    int lost = 0;                                   ///< verifiers that died, or were of no use
    Error why{Errc{}, ""};                          ///< it lost the last one
    TimePoint since{};                              ///< one is missed
    bool elsewhere = false;                         ///< another coordinator began it, and nobody here has caught up yet
    std::string except = {};                        ///< of an audit: the verifier that it is about
    // As the client knows them:
    std::string told_verifier = {};
    std::int64_t told_tokens = 0;  ///< max_tokens
  };
  struct Round {
    RoundId id{};
    TimePoint began{};
    std::optional<WireTensor> hidden = {};  ///< the drafter's next input; none once it has been sent
    RoundDrafts drafts = {};
    PeerId drafter = {};  ///< whose they are, as far as they are the assistant's
    /// Of the last draft that a verdict kept.
    std::int64_t row_of(const Verdict& verdict) const { return drafts.depths.empty() ? verdict.accepted : verdict.row; }
    /// Whether all drafts are a chain of one source, and what was looked up behind it and counted as such.
    bool is_plain() const {
      return drafts.depths.empty() && std::ranges::count(drafts.sources, outcome.source) == outcome.own();
    }
    /// Whether its drafter's answer is a token tree. A round whose drafter is late has none, whatever it was asked for.
    bool is_tree() const { return choice.tree && !drafter.empty(); }
    bool asked_drafter = false;          ///< stepwise
    bool queued = false;                 ///< its drafters had others' drafts to make first
    bool moved = false;                  ///< another verifier began it: it says nothing of what rounds cost
    std::optional<bool> after_all = {};  ///< the round before was drafted ahead for; whether all its drafts held
    int rows = 0;                        ///< K/V rows of the round before that went to the drafter
    DraftChoice choice = {};
    RoundOutcome outcome = {};  ///< as far as it has come
  };
  struct Books {
    TimePoint opened{}, first_token{};
    bool done = false;  ///< kEnded, with an answer
    RequestMetrics metrics = {};
  };

  SessionId id_;
  Client client_;
  Generate request_;           ///< its prompt is in text_
  std::vector<TokenId> text_;  ///< prompt, then answer
  Prompt prompt_;
  bool drafts_plainly_;  ///< a drafter need not know of its sampling: it takes the most probable tokens
  Phase phase_ = Phase::kWaiting;
  TimePoint entered_;  ///< its phase
  Failover failover_;
  Encoding encoding_;
  Workers workers_;
  Request asked_;
  Round round_;
  Books books_;
  std::unique_ptr<DraftLengthPolicy> policy_;  ///< none while it waits, and for a stepwise text
};

}  // namespace outrider
