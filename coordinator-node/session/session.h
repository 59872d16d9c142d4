#pragma once

#include <string>

#include "coordinator-node/session/drafting.h"
#include "coordinator-node/session/session_state.h"
#include "coordinator-node/session/verifying.h"

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
/// SessionState is what it keeps. The session routes each event to the part that it concerns (Drafting, Verifying, an
/// EncoderSeat), and does what that part says follows (Next).
class Session {
 public:
  /// @param request_id  the client's number for it
  Session(Environment& environment, SessionId id, const PeerId& client, SessionId request_id, Generate request)
      : state_(environment, id, client, request_id, std::move(request)) {}
  virtual ~Session() = default;

  const SessionState& state() const { return state_; }

  /// Its turn has come, or it is moving. @return false if no verifier has room for it now; else it has begun, or
  /// failed.
  bool start();
  /// A worker's message about it; one that it has left, or of another round, is late. @return false where the message
  /// makes no sense.
  bool on_worker(const PeerId& from, Message message);
  /// A worker has sent something about it, or about nobody knows whom, that cannot be read.
  void on_unreadable(const PeerId& from);
  /// The fleet has lost a worker. @param what  became of it
  void on_worker_gone(const PeerId& peer, const std::string& what);
  /// @return false where it was refused.
  virtual bool on_step(const Step& step);
  void on_cancel(const Cancel& cancel);
  virtual void on_tick();
  /// When on_tick() is due next, if that is known.
  std::optional<TimePoint> deadline() const { return drafting_.deadline(); }
  /// `bytes` of a message of its own went out.
  void on_sent(const Message& message, std::size_t bytes);
  /// Ends it: tells the workers to forget it, and the client `last`. @pre it has not ended
  void finish(Body last);

 protected:
  void fail(Error why) { finish(Failed{why.code, std::move(why.message)}); }
  /// Does what follows from an event. @return false where the event made no sense
  bool follow(Next next);
  /// Drafts and verifies, unless the client takes the steps itself.
  virtual void begin_round() { follow(drafting_.begin()); }
  /// There will be no more drafts in this round than those at hand: verifies, or shows them to the client.
  virtual void end_drafting();

  SessionState state_;
  Drafting drafting_{state_};
  Verifying verifying_{state_};

 private:
  void encode_at(const PeerId& encoder);
  /// Its encoder has left: another goes on, or the verifier's own towers; else it waits for an encoder.
  void encode_elsewhere(Error why);
  /// Looks for another verifier, and keeps looking until it is there.
  void move_to_another_verifier();
};

/// A session whose client takes the steps of each round: whose turn it is, and what the client is shown (ADR 4).
class StepwiseSession : public Session {
 public:
  using Session::Session;
  /// One whose client is the coordinator itself ("").
  StepwiseSession(Environment& environment, SessionId id, const Audit& audit);
  bool on_step(const Step& step) override;
  void on_tick() override;

 private:
  void begin_round() override { state_.enter(Phase::kPaused); }
  void end_drafting() override;

  int keep_alives_ = 0;  ///< since the client's last step
};

}  // namespace outrider
