#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/policy/policies.h"
#include "common/protocol/rejection.h"
#include "common/protocol/worker_link.h"

namespace outrider {

struct CoordinatorConfig {
  LinkConfig link = {};
  /// The first session number, and the first number of a Welcome. Give a random one: workers tell this coordinator from
  /// an earlier one by it.
  std::uint64_t instance = 1;
  /// A drafter that has not answered by then is left out of the round; it is asked again once it is
  /// heard. Losing a round of drafts costs little, waiting for a dead drafter costs a user's patience.
  Duration draft_timeout = std::chrono::milliseconds(500);
  /// One that is alive and misses its time again is left out for so long, then for twice as long each time, up to the
  /// second: it may be too slow or too far away for ever.
  Duration draft_retry_min = std::chrono::seconds(1), draft_retry_max = std::chrono::seconds(64);
  /// Repeat an unanswered request to a verifier that is alive: its answer or the request was lost.
  Duration verify_resend = std::chrono::seconds(2);
  /// A session that waits for its client's step: repeat its last request, so that the verifier does not
  /// take it for one whose Free was lost (VerifierConfig::session_idle_max), and see whether the client
  /// is still there. Rare, because all of it waits in the queue of a client that does not read.
  Duration keep_alive = std::chrono::seconds(30);
  int keep_alives_max = 120;                  ///< then the session fails: nobody waits an hour for a step
  std::size_t sessions_max = 1024;            ///< at work at once, on all verifiers
  std::size_t waiting_max = 1024;             ///< requests that wait for their turn; a further one is refused
  std::int64_t waiting_tokens_max = 1 << 24;  ///< likewise, of their prompts: 64 MiB
  bool want_rejections = false;               ///< fill take_rejections(): the drafters send their distributions
};

/// The coordinator's side of every session, as a pure state machine: owns the text, asks the drafter,
/// asks the verifier, emits. One round (docs/architecture.md, "One round"):
///
///   Draft(last token, hidden row, K/V delta) -> Candidates -> Verify(last token, drafts) -> Verdict
///
/// The text is the verifier's alone. Whatever a drafter does or fails to do, the session goes on: at
/// worst it verifies the last token by itself, which is plain decoding.
class CoordinatorCore {
 public:
  explicit CoordinatorCore(const CoordinatorConfig& config);

  void on_message(const PeerId& from, Message message, TimePoint now);
  /// The transport found no such peer.
  void on_peer_gone(const PeerId& peer, TimePoint now);
  /// `bytes` of `message` went out: counts the wire.
  void on_sent(const Message& message, std::size_t bytes);
  void on_tick(TimePoint now);
  /// When on_tick() is due next for a policy's sake, if that is known: a draft that comes later is not worth the wait.
  std::optional<TimePoint> next_deadline() const;
  /// What the sessions' policies learned; to be kept over restarts.
  Policies& policies() { return policies_; }

  std::vector<Outgoing> take_outgoing() { return std::exchange(outgoing_, {}); }
  std::vector<Notice> take_notices() { return std::exchange(notices_, {}); }
  /// One of every round that lost a draft, but for stepwise texts, whose drafts are the client's.
  std::vector<Rejection> take_rejections() { return std::exchange(rejections_, {}); }
  Status status() const;

 private:
  struct Worker {
    Hello hello;
    std::uint64_t membership = 0;  ///< as in Welcome
    TimePoint heard{};
    bool draining = false;
    bool suspect = false;  ///< a drafter that missed its time; cleared by any message from `ask_again` on
    Duration retry{};      ///< from its next miss to ask_again; 0: it has answered in time since its last miss
    TimePoint ask_again{};
    int sessions = 0;
    std::int64_t kv_bytes = 0;  ///< of a verifier: set aside for them
    Duration rtt{};             ///< of its heartbeats, smoothed; 0: not measured yet
    CostModel costs = {};       ///< of a verifier: its sessions' policies refer to it

    /// Whether a session may be given to it now.
    bool may_draft() const {
      return hello.role == Role::kDrafter && !draining && !suspect && sessions < hello.capacity.sessions_max;
    }
  };
  enum class Phase { kWaiting, kPrefill, kPaused, kDrafting, kVerifying };  ///< kPaused: for a Step
  struct Session {
    PeerId client;
    std::uint64_t turn = 0;     ///< the lowest of those that wait starts first
    SessionId request_id{};     ///< the client's number for it
    Generate request;           ///< its prompt is in `text`
    std::vector<TokenId> text;  ///< prompt, then answer
    Position prompt_size = 0;
    Phase phase = Phase::kWaiting;
    TimePoint phase_since{}, asked{};
    TimePoint kept_alive{};  ///< last request to the verifier, repeats while paused included
    TimePoint opened{}, first_token{}, last_token{};
    PeerId verifier, drafter;   ///< "" while there is none
    bool no_drafter = false;    ///< one had no room for it, against our books: it gets none any more
    std::int64_t kv_bytes = 0;  ///< what it takes of its verifier's memory
    RoundId round{};
    std::vector<TokenId> drafts;
    std::vector<Distribution> q;         ///< as the drafter sent it with the drafts
    bool asked_drafter = false;          ///< stepwise: in this round
    int keep_alives = 0;                 ///< stepwise: since the last step
    std::optional<Message> outstanding;  ///< the last request to the verifier
    // The drafter's next input, from the last verdict.
    std::optional<WireTensor> hidden;
    KvRows kv;                 ///< not yet sent
    Position replica_end = 0;  ///< rows sent to the drafter
    RequestMetrics metrics;
    std::unique_ptr<DraftLengthPolicy> policy;  ///< none while it waits, and for a stepwise text
    DraftChoice choice;                         ///< of this round
    RoundOutcome outcome;                       ///< of this round, as far as it has come
    TimePoint round_began{};
  };
  using Sessions = std::map<SessionId, Session>;

  void on_hello(const PeerId& from, const Hello& hello, TimePoint now);
  void on_heartbeat(Worker& worker, const Heartbeat& heartbeat, TimePoint now);
  void on_generate(const PeerId& from, const Message& message, TimePoint now);
  void on_step(const PeerId& from, const Message& message, TimePoint now);
  void on_client_cancel(const PeerId& from, SessionId request_id, const Cancel& cancel);
  void on_kv_chunk(Session& session, SessionId id, KvRows kv);
  void on_candidates(Sessions::iterator it, Candidates candidates, TimePoint now);
  void on_verdict(Sessions::iterator it, Message message, TimePoint now);

  /// Starts the sessions that wait, in the order of their turns, until one has to go on waiting.
  void start_waiting(TimePoint now);
  /// Of an answer to so long a prompt, in the verifier with the most memory, were it empty; below 1: the prompt does
  /// not fit.
  std::int64_t max_tokens_that_fit(std::int64_t prompt) const;
  /// Gives a session to a verifier, or fails it. @return false if no verifier has room for it now.
  bool start(Sessions::iterator it, TimePoint now);
  /// Counts K/V of `positions` as taken from the memory of the session's verifier.
  void set_aside(Session& session, Position positions);
  std::size_t waiting() const;
  /// Adds tokens to the answer up to the first stop, and sends them. @return whether they ended the session.
  bool emit(Sessions::iterator it, std::vector<TokenId> fresh, std::vector<TokenLogprobs> logprobs,
            std::optional<RoundReport> round, TimePoint now);
  /// Opens a round, and drafts and verifies unless the client takes the steps itself.
  /// catch_up: the K/V at hand belong to a prompt or to a late joiner's history, not to a round of drafts.
  void next_round(Session& session, SessionId id, TimePoint now, bool catch_up);
  bool logs_rejections(const Session& session) const {
    return config_.want_rejections && !session.request.unverified && !session.request.stepwise;
  }
  /// Drafts this round may have.
  std::int64_t draft_room(const Session& session) const;
  /// Lets the policy choose a length up to `room`, and drafts.
  void draft(Session& session, SessionId id, std::int64_t room, TimePoint now);
  /// Drafts if there is somebody to draft, else goes on as without drafts.
  void ask_drafter(Session& session, SessionId id, std::int64_t draft_length, TimePoint now);
  /// There will be no more drafts in this round than those at hand: verifies, or shows them to the client. Ends an
  /// unverified session: nobody else could go on.
  void end_drafting(Session& session, SessionId id, TimePoint now);
  void send_verify(Session& session, SessionId id, TimePoint now);
  void ask_verifier(Session& session, Message message, TimePoint now);
  void assign_drafter(Session& session);
  void unassign_drafter(Session& session, SessionId id, bool tell);
  Worker* usable_drafter(const Session& session);
  void drop_worker(const PeerId& peer, const std::string& why, TimePoint now);
  /// Ends a session: tells the workers to forget it, and the client `last`.
  void finish(Sessions::iterator it, Body last);
  void fail(Sessions::iterator it, Errc code, std::string message);
  const PairFacts* verifier_facts() const;
  void send(const PeerId& to, Message message) { outgoing_.push_back({to, std::move(message)}); }
  /// What may happen again at once, a refusal say: the same words about a peer come once in kWarningRepeat.
  void warn_of_peer(const PeerId& peer, std::string text, TimePoint now);
  void warn(std::string text) { notices_.push_back({true, std::move(text)}); }
  void inform(std::string text) { notices_.push_back({false, std::move(text)}); }

  CoordinatorConfig config_;
  std::map<PeerId, Worker> workers_;
  struct Warning {
    std::string text;
    TimePoint when;
  };
  static constexpr Duration kWarningRepeat = std::chrono::minutes(1);
  static constexpr std::size_t kWarningsMax = 1024;
  std::map<PeerId, Warning> warnings_;  ///< said lately
  Policies policies_;
  Sessions sessions_;
  std::uint64_t next_session_, next_membership_;
  std::uint64_t turn_ = 0;  ///< of the session that started last
  std::optional<TimePoint> next_heartbeat_;
  std::vector<Outgoing> outgoing_;
  std::vector<Notice> notices_;
  std::vector<Rejection> rejections_;
};

}  // namespace outrider
