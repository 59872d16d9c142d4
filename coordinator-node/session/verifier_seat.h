#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coordinator-node/place.h"
#include "coordinator-node/session/encoder_seat.h"
#include "coordinator-node/session/session_base.h"

namespace outrider {

/// A sequence's verifier, and the sequence's moves between verifiers.
class VerifierSeat {
 public:
  VerifierSeat(SessionBase& session, EncoderSeat& encoder) : session_(session), encoder_(encoder) {}

  const PeerId& peer() const { return place_.peer(); }
  Place& place() { return place_; }
  const Place& place() const { return place_; }
  /// @pre the sequence has a verifier
  Worker& worker() const { return environment_.fleet.at(peer()); }
  const Hello& hello() const { return worker().hello; }

  /// Returns the requirements of the sequence's next verifier.
  Fleet::Requirements requirements() const;
  void take(const Fleet::Offer& offer);
  /// Reserves memory of the verifier for the K/V of `positions` and for the media.
  void set_aside(Position positions) {
    place_.set_aside(hello().capacity.kv_cost.bytes(positions) + media_bytes(sequence_.request.media));
  }
  /// Tells the verifier to forget the sequence.
  void leave();
  /// Leaves a draining verifier if there is another one; otherwise the sequence may end at this one.
  /// @return true if the sequence is without a verifier
  bool leaves();
  /// Makes a draft length policy, unless there is one for this verifier and this kind of drafters.
  void choose_policy(DraftInput needs);
  /// Returns the estimates that the policy uses.
  Estimates& costs() const { return worker().costs_with(policy_for_); }

  /// Returns true if a verifier that caught up chose another last token than the previous one, although the answer
  /// depends on the sequence alone.
  bool contradicts(const Verdict& verdict) const;
  /// Checks that a verdict's numbers fit the round, and its log-probabilities the request.
  Result<void> check(const Verdict& verdict, bool prefill) const;
  /// Takes log-probabilities of the prompt. @return false if they were not the requested ones
  bool take_scores(const PromptScores& scores);
  /// Adds the state that another coordinator would need and the client does not know yet.
  void report(Tokens& tokens);
  /// Handles the loss of the verifier. A verifier that was only silent, and is back over the same connection, does not
  /// count again. @return the client's error if the sequence may lose no more
  std::optional<Error> lose(Error error);
  void count_failover() const;
  /// Handles the passing of time while the sequence could start at no verifier.
  /// @param waits  the sequence is in the queue
  /// @return the client's error, after too long
  std::optional<Error> on_unassigned(bool waits);

  /// Chooses draft lengths; refers to the verifier's costs. nullptr for a stepwise sequence, and without a verifier.
  std::unique_ptr<DraftLengthPolicy> policy = {};
  /// Of verifiers that may continue, since the first one's answer; none: any.
  std::optional<std::string> numeric_class = {};
  Error why{Errc{}, ""};                          ///< reason of the last loss
  TimePoint missed_since{};                       ///< start of the last kMoving, from which a failover's pause counts
  bool resuming = false;           ///< another coordinator began the answer, and no verifier here has caught up yet
  std::string except = {};         ///< of an audit: the audited verifier
  TimePoint unassigned_since{};    ///< waiting or moving: start of the time without a possible verifier
  Position scored = 1;             ///< end of the prompt's tokens whose log-probabilities are here or not needed
  std::string reported_name = {};  ///< known to the client

 private:
  SessionBase& session_;
  Environment& environment_ = session_.environment;
  Sequence& sequence_ = session_.sequence;
  EncoderSeat& encoder_;
  Place place_;
  std::int64_t reported_max_tokens_ = sequence_.request.max_tokens;  ///< known to the client
  int lost_ = 0;                                                     ///< verifiers that died, or were useless
  std::vector<PeerId> silent_ = {};                                  ///< one entry per long silence
  DraftInput policy_for_ = DraftInput::kTargetRows;                  ///< drafters' input that the policy was made for
};

}  // namespace outrider
