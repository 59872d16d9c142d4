#pragma once

#include "coordinator-node/session/session_state.h"

namespace outrider {

/// A sequence's requests to its verifier, and the handling of its answers: the prompt, then round after round.
class Verifying {
 public:
  explicit Verifying(SessionState& state) : state_(state) {}

  /// Sends the prompt to the verifier.
  Next prefill();
  /// Sends the round's drafts to the verifier.
  Next verify();
  /// Handles the verifier's message about this round.
  Next on_message(Message message);
  /// Handles the passing of time while the verifier's answer is outstanding.
  Next on_tick();
  /// Handles a verifier that is alive but whose answers are useless: others are preferred until it answers again.
  Next distrust(Error why);
  /// Handles the loss of a verifier that is dead or useless: the sequence needs another verifier, at once or for its
  /// next verification.
  Next lose(Error why);

 private:
  /// Continues without drafters that need rows, since the verifier's rows take too long to arrive.
  void stop_sending_rows();
  Next on_verdict(Verdict verdict);
  /// Handles the verdict of a verifier that has caught up with an answer. If another verifier began the answer, its
  /// outstanding request is repeated; if another coordinator did, the first round here begins.
  Next on_caught_up(Verdict verdict);
  /// Fixes the numeric class, the encoding class and the fleet's facts after this coordinator's first prefill of the
  /// answer: they are the verifier's from now on.
  void keep_first(const Verdict& verdict);
  /// Adds tokens to the answer up to the first stop, and sends them.
  Next emit(Verdict verdict, std::optional<RoundReport> report);
  /// Counts the round's cost and result.
  void account(const Verdict& verdict);
  /// Logs the round's first rejected draft.
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
