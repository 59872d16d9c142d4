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
  /// Called while its answer is outstanding.
  Next on_tick();
  /// The verifier is alive but its answers are useless: others are preferred until it answers again.
  Next distrust(Error why);
  /// The verifier is dead or useless: another is needed, at once or for the next verification.
  Next lose(Error why);

 private:
  /// The verifier's rows for drafters are slow: continues without drafters.
  void spare_rows();
  Next on_verdict(Verdict verdict);
  /// The verifier has caught up with an answer: of another verifier, whose outstanding request is then repeated; or of
  /// another coordinator, in which case the first round here begins.
  Next on_caught_up(Verdict verdict);
  /// Called after this coordinator's first prefill of the answer: its verifier fixes the numeric class, the encoding
  /// class and the fleet's facts from now on.
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
