#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "coordinator-node/auditor.h"
#include "coordinator-node/session/drafting.h"
#include "coordinator-node/session/phases.h"

namespace outrider {

/// One sequence's life at the coordinator: its prompt, then round after round
///
///   Draft(last token, hidden row) -> Candidates -> Verify(last token, drafts) -> Verdict
///
/// The drafter drafts on while the Verify is out, for the most probable outcomes (Draft::ahead). Where the Verdict is
/// one of these, the next round begins with the drafts there. Of several drafters all are asked, and who answers first
/// has drafted for the round.
///
/// The sequence is the verifier's alone. Whatever a drafter does or fails to do, the session goes on: at worst it
/// verifies the last token by itself, which is plain decoding. A sequence whose verifier leaves it starts once more, as
/// it once started: another verifier gets all of its tokens whose K/V the last one had, and what was asked last is
/// asked again.
///
/// The session owns the phases and routes each event to the part that it concerns: Sequence, VerifierSeat,
/// DrafterSeats, EncoderSeat, Round, Drafting and Ledger.
class Session {
 public:
  /// The session of a request: a StepwiseSession where the client takes the steps.
  /// @param request_id  the client's number for it
  static std::unique_ptr<Session> of(Environment& environment, SessionId id, const PeerId& client, SessionId request_id,
                                     Generate request);
  /// One whose client is the coordinator itself ("").
  static std::unique_ptr<Session> of(Environment& environment, SessionId id, const Audit& audit);
  virtual ~Session() = default;

  const PeerId& client() const { return client_; }
  SessionId request_id() const { return request_id_; }
  const Sequence& sequence() const { return sequence_; }
  TimePoint opened() const { return ledger_.opened; }
  Phase phase() const { return phase_; }
  /// How long a stepwise session has had nothing to do but wait for its client.
  Duration resting() const { return phase_ == Phase::kPaused ? environment_.now - entered_ : Duration::zero(); }
  /// Whether a verifier here has given it a token, or has caught up with an answer that began elsewhere.
  bool has_started() const { return sequence_.has_token() && !verifier_.resuming; }
  /// It has ended: what another verifier would have to say the same to. None for a sequence that is not one verifier's
  /// alone: which failed, moved or came from elsewhere, or that drafts have a say in.
  std::optional<Audit> audit() const;
  /// Whether its request can be answered at all, and by a model with these facts, if they are known.
  Result<void> check(const PairFacts* facts) const;
  /// Where it may start.
  Fleet::Requirements requirements() const { return verifier_.requirements(encoder_); }
  /// Adds its share to its workers' loads.
  void add_load(std::map<PeerId, Load>& loads) const;

  /// Its turn has come, or it is moving. @return false if no verifier has room for it now; else it has begun, or
  /// failed.
  bool start();
  /// A worker's message about it; one that it has left, or of another round, is late. @return false where the message
  /// makes no sense.
  bool on_worker(const PeerId& from, Message message);
  bool is_drafter(const PeerId& peer, RoundId round) { return drafters_.find(peer) != nullptr && round == round_.id; }
  /// A worker has sent something about it, or about nobody knows whom, that cannot be read.
  void on_unreadable(const PeerId& from);
  /// The fleet has lost a worker. @param what  became of it
  void on_worker_gone(const PeerId& peer, const std::string& what);
  /// @return false where it was refused.
  virtual bool on_step(const Step& step);
  void on_cancel(const Cancel& cancel);
  void on_tick();
  /// When on_tick() is due next, if drafts are not worth a longer wait.
  std::optional<TimePoint> deadline() const;
  /// `bytes` of a message of its own went out.
  void on_sent(const Message& message, std::size_t bytes);
  /// Ends it: tells the workers to forget it, and the client `last`. @pre it has not ended
  void finish(Body last);

 protected:
  Session(Environment& environment, SessionId id, const PeerId& client, SessionId request_id, Generate request);

  static bool is_in_round(Phase phase) { return phase == Phase::kDrafting || phase == Phase::kVerifying; }
  void enter(Phase phase);
  void reply(Body body) const { environment_.send(client_, {.session = request_id_, .body = std::move(body)}); }
  void fail(Errc code, std::string message) { finish(Failed{code, std::move(message)}); }
  void fail(Error error) { fail(error.code, std::move(error.message)); }
  Duration waited() const { return environment_.now - entered_; }
  /// Whom the phase asks: its encoder, else its verifier; "" without one.
  const PeerId& asked() const { return phase_ == Phase::kEncoding ? encoder_.peer() : verifier_.peer(); }

  /// Where it has none of its verifier yet, or drafters of another kind since: a policy for its draft lengths.
  void choose_policy();

  // ---- rounds (session_round.cc) ----
  /// Opens a round. @param kv  what the last one committed
  void next_round(KvRows kv);
  /// Drafts and verifies, unless the client takes the steps itself.
  virtual void begin_round();
  /// There will be no more drafts in this round than those at hand: verifies, or shows them to the client.
  virtual void end_drafting();
  /// Hands K/V rows of its verifier on to its drafters.
  void forward(KvRows kv);
  /// Waits for drafts, or goes on without.
  void follow(Drafting::Next next);
  void send_verify();
  void on_verdict(Verdict verdict);
  void account(const Verdict& verdict);
  /// Adds tokens to the answer up to the first stop, and sends them. Ends the session if they end the answer.
  void emit(std::vector<TokenId> fresh, std::vector<TokenLogprobs> logprobs, std::optional<RoundReport> round);
  bool on_drafter(DrafterSeats::Replica& replica, Message message);
  /// One of its drafters is gone: the round need not wait for it any more.
  void lose_drafter(const PeerId& drafter);

  // ---- its verifier, and the encoder before it (session_verifier.cc) ----
  /// Its encoder or verifier has not answered yet.
  void on_unanswered();
  /// Its verifier's rows for drafters are what takes so long: goes on without drafters.
  void spare_rows();
  /// Lets its verifier have the prompt.
  void send_prefill();
  bool on_verifier(Message message);
  /// Its verifier is dead or of no use: what it had is needed from another, now or when it is to verify next.
  void lose_verifier(Error why);
  /// Its verifier is there and answers with nothing of use: others are preferred until it answers again.
  void distrust_verifier(Error why);
  /// Looks for another verifier, and keeps looking until it is there.
  void move_to_another_verifier();
  /// Another verifier has caught up with the last one: asks it what that one was asked.
  void on_moved(Verdict verdict);
  /// A verifier has caught up with another coordinator's: opens its first round here.
  void on_resumed(Verdict verdict);
  virtual void on_resumed_tokens() {}
  /// Its client has taken no step for a while.
  virtual void on_pause() {}
  /// No verifier that it could start at has been there for too long.
  void on_unassigned(Duration alone);
  /// Lets an encoder have what is not encoded yet.
  void encode_at(const PeerId& encoder);
  void follow(EncoderSeat::Next next);
  /// Its encoder has left: another goes on, or the verifier's own towers; else it waits for an encoder.
  void encode_elsewhere(Error why);

  Environment& environment_;
  const SessionId id_;
  const PeerId client_;
  const SessionId request_id_;  ///< the client's own number
  Phase phase_ = Phase::kWaiting;
  TimePoint entered_;  ///< its phase
  Ledger ledger_;
  Sequence sequence_;
  PendingRequest pending_;  ///< what the verifier, or the encoder before it, was asked last
  EncoderSeat encoder_;
  VerifierSeat verifier_;
  DrafterSeats drafters_;
  Round round_;
  DraftInput policy_for_ = DraftInput::kTargetRows;  ///< what the drafters need whose costs its policy knows
  Drafting drafting_;
};

/// A session whose client takes the steps of each round: whose turn it is, and what the client is shown (ADR 4).
class StepwiseSession : public Session {
 public:
  StepwiseSession(Environment& environment, SessionId id, const PeerId& client, SessionId request_id, Generate request)
      : Session(environment, id, client, request_id, std::move(request)) {}
  bool on_step(const Step& step) override;

 private:
  void begin_round() override { enter(Phase::kPaused); }
  void end_drafting() override;
  void on_resumed_tokens() override;
  /// Repeats the last request now and then, so that the verifier does not take the session for one whose Free was lost
  /// (VerifierConfig::session_idle_max), and sees whether the client is still there.
  void on_pause() override;

  int keep_alives_ = 0;  ///< since the client's last step
};

}  // namespace outrider
