#pragma once

#include "coordinator-node/session/session_state.h"

namespace outrider {

/// What a sequence asks of its verifier, and what follows from the answers: the prompt, then round after round.
class Verifying {
 public:
  explicit Verifying(SessionState& state) : state_(state) {}

  /// Lets the verifier have the prompt.
  Next prefill();
  /// Lets the verifier have the round's drafts.
  Next verify();
  /// The verifier said something of this round.
  Next on_message(Message message);
  /// The verifier has not answered yet.
  Next on_tick();
  /// It is there and answers with nothing of use: others are preferred until it answers again.
  Next distrust(Error why);
  /// It is dead or of no use: what it had is needed from another, now or when that one is to verify next.
  Next lose(Error why);

 private:
  /// Its rows for drafters are what takes so long: goes on without drafters.
  void spare_rows();
  Next on_verdict(Verdict verdict);
  /// It has caught up with an answer: with another verifier, then it is asked what that one was asked; or with another
  /// coordinator's, whose first round here begins.
  Next on_caught_up(Verdict verdict);
  /// Its prefill is the first of this coordinator: what it is holds from now on.
  void keep_first(const Verdict& verdict);
  /// Adds tokens to the answer up to the first stop, and sends them.
  Next emit(Verdict verdict, std::optional<RoundReport> report);
  /// Counts what the round cost and brought.
  void account(const Verdict& verdict);
  /// Logs the round's first draft that the verdict did not keep.
  void log_rejection(const Verdict& verdict) const;

  SessionState& state_;
  Environment& environment_ = state_.environment;
  Sequence& sequence_ = state_.sequence;
  PendingRequest& pending_ = state_.pending;
  VerifierSeat& verifier_ = state_.verifier;
  DrafterSeats& drafters_ = state_.drafters;
  Round& round_ = state_.round;
  Ledger& ledger_ = state_.ledger;
};

}  // namespace outrider
