#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coordinator-node/place.h"
#include "coordinator-node/session/encoder_seat.h"
#include "coordinator-node/session/session_base.h"

namespace outrider {

/// A sequence's verifier, and how the sequence goes on without the verifier that it had.
class VerifierSeat {
 public:
  VerifierSeat(SessionBase& session, EncoderSeat& encoder) : session_(session), encoder_(encoder) {}

  const PeerId& peer() const { return place_.peer(); }
  Place& place() { return place_; }
  const Place& place() const { return place_; }
  /// @pre it has one
  Worker& worker() const { return environment_.fleet.at(peer()); }
  const Hello& hello() const { return worker().hello; }

  /// Where the sequence may start.
  Fleet::Requirements requirements() const;
  void take(const Fleet::Offer& offer);
  /// Counts K/V of `positions` as taken from the memory of its verifier.
  void set_aside(Position positions) { place_.set_aside(hello().capacity.kv_cost.bytes(positions)); }
  /// Tells the verifier to forget the sequence.
  void leave();
  /// Leaves a verifier that drains if there is another to go on at; else the sequence may end where it is.
  /// @return whether the sequence is without a verifier
  bool leaves();
  /// Where it has none of this verifier yet, or drafters of another kind since: a policy for its draft lengths.
  void choose_policy(DraftInput needs);
  /// Of its policy.
  Estimates& costs() const { return worker().costs_with(policy_for_); }

  /// The verifier has answered: from now on only its class goes on with the sequence.
  void keep_class(const Hello& verifier) { numeric_class = verifier.numeric_class; }
  /// Whether a verifier that caught up chose another last token than the one before. Where nothing but the sequence
  /// decides, the same bits choose the same token.
  bool contradicts(const Verdict& verdict) const;
  /// Whether a verdict's numbers are those of the round, and its log-probabilities those that were asked for.
  Result<void> check(const Verdict& verdict, bool prefill) const;
  /// Takes log-probabilities of the prompt. @return false where they are not those that were asked for
  bool take_scores(const PromptScores& scores);
  /// Adds what the client does not know yet and another coordinator would have to.
  void report(Tokens& tokens);
  /// Its verifier is lost. One that was only silent, and is back over the same connection, is no further verifier.
  /// @return the client's error where the sequence may lose no more
  std::optional<Error> lose(Error error);
  void count_failover() const;
  /// No verifier that the sequence could start at is there. @param waits  in the queue. @return the client's error,
  /// after too long
  std::optional<Error> on_unassigned(bool waits);

  /// For draft lengths; refers to the verifier's costs. nullptr for a stepwise sequence, and without a verifier.
  std::unique_ptr<DraftLengthPolicy> policy = {};
  std::optional<std::string> numeric_class = {};  ///< of the verifiers that may go on; none: any
  Error why{Errc{}, ""};                          ///< the sequence lost the last one
  TimePoint missed_since{};                       ///< one is missed
  bool resuming = false;           ///< another coordinator began the answer, and nobody here has caught up yet
  std::string except = {};         ///< of an audit: the verifier that it is about
  TimePoint unassigned_since{};    ///< waiting or moving: no verifier was there that the sequence could start at
  Position scored = 1;             ///< end of the prompt's tokens that need no log-probabilities or have them
  std::string reported_name = {};  ///< as the client knows it

 private:
  SessionBase& session_;
  Environment& environment_ = session_.environment;
  Sequence& sequence_ = session_.sequence;
  EncoderSeat& encoder_;
  Place place_;
  std::int64_t reported_max_tokens_ = sequence_.request.max_tokens;  ///< likewise
  int lost_ = 0;                                                     ///< verifiers that died, or were of no use
  std::vector<PeerId> silent_ = {};  ///< those that were silent for too long, once for each time
  DraftInput policy_for_ = DraftInput::kTargetRows;  ///< what the drafters need whose costs its policy knows
};

}  // namespace outrider
