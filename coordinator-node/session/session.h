#pragma once

#include <set>
#include <string>

#include "coordinator-node/session/drafting.h"
#include "coordinator-node/session/session_state.h"
#include "coordinator-node/session/verifying.h"

namespace outrider {

/// One sequence at the coordinator: its prompt, then round after round
///
///   Draft(last token, hidden row) -> Candidates -> Verify(last token, drafts) -> Verdict
///
/// The drafter continues drafting during the Verify, for the most probable outcomes (Draft::ahead). If the Verdict is
/// one of these, the next round begins with those drafts. With several drafters all are asked, and the first reply
/// counts.
///
/// The verifier alone decides every token. Whatever a drafter does or fails to do, the session continues: at worst it
/// verifies the last token by itself, which is plain decoding. A sequence that loses its verifier starts again: another
/// verifier gets all tokens whose K/V the lost one had, and then the last request.
///
/// SessionState holds the state. The session routes each event to the part concerned (Drafting, Verifying, an
/// EncoderSeat), and executes that part's decision (Next).
class Session {
 public:
  /// @param request_id  the client's number of this request
  Session(Environment& environment, SessionId id, const PeerId& client, SessionId request_id, Generate request)
      : state_(environment, id, client, request_id, std::move(request)) {}
  virtual ~Session() = default;

  const SessionState& state() const { return state_; }

  /// Starts the sequence when its turn has come, or at another verifier after the loss of one.
  /// @param awaited  see Fleet::Requirements
  /// @return false if no verifier has room for the sequence now; else the sequence has begun, or failed
  bool start(std::set<PeerId>* awaited = nullptr);
  /// Handles a worker's message. A message from a former worker, or of another round, is late and changes nothing.
  /// @return false for an invalid message
  bool on_worker(const PeerId& from, Message message);
  /// Handles an undecodable message of a worker, about this session or an unknown one.
  void on_unreadable(const PeerId& from);
  /// Handles the loss of a worker. @param what  its reason
  void on_worker_gone(const PeerId& peer, const std::string& what);
  /// Handles a client's Step. @return false if the step was refused
  virtual bool on_step(const Step& step);
  void on_cancel(const Cancel& cancel);
  virtual void on_tick();
  /// Time of the next on_tick(), if known.
  std::optional<TimePoint> deadline() const { return drafting_.deadline(); }
  /// Counts `bytes` of a message that this session sent.
  void on_sent(const Message& message, std::size_t bytes);
  /// Ends the session: tells the workers to forget the sequence, and sends `last` to the client.
  /// @pre the session has not ended
  void finish(Body last);

 protected:
  void fail(Error why) { finish(Failed{why.code, std::move(why.message)}); }
  /// Executes an event's consequences. @return false if the event was invalid
  bool follow(Next next);
  /// Drafts and verifies, unless the client takes the steps itself.
  virtual void begin_round() { follow(drafting_.begin()); }
  /// Ends drafting in this round: verifies the drafts, or returns them to the client.
  virtual void end_drafting();

  SessionState state_;
  Drafting drafting_{state_};
  Verifying verifying_{state_};

 private:
  void encode_at(const PeerId& encoder);
  /// Continues after the loss of the encoder: with another encoder, or with the verifier's own towers. With neither,
  /// the session waits for an encoder.
  void encode_elsewhere(Error why);
  /// Assigns the sequence to another verifier, or waits until there is one.
  void move_to_another_verifier();
};

/// A session whose client takes the steps of each round (ADR 4).
class StepwiseSession : public Session {
 public:
  using Session::Session;
  /// Makes the session of an audit, whose client is the coordinator itself ("").
  StepwiseSession(Environment& environment, SessionId id, const Audit& audit);
  bool on_step(const Step& step) override;
  void on_tick() override;

 private:
  void begin_round() override { state_.enter(Phase::kPaused); }
  void end_drafting() override;

  int keep_alives_ = 0;  ///< since the client's last step
};

}  // namespace outrider
