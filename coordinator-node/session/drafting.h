#pragma once

#include <span>

#include "coordinator-node/session/session_state.h"

namespace outrider {

/// Obtains a round's drafts: the policy chooses a source and a length, drafters are asked, and looked-up drafts, which
/// cost nothing, are added.
class Drafting {
 public:
  explicit Drafting(SessionState& state);

  /// Opens a round. @param kv  rows committed by the last one
  void open_round(KvRows kv);
  /// Chooses a length and a source by the policy, and begins. @pre there is a policy
  Next begin();
  /// Requests drafts if there is a drafter, else continues without drafts.
  Next ask(std::int64_t draft_length);
  /// Returns true if drafters get the sequence's tokens only when drafts are wanted: the policy may skip drafts, and
  /// policies of the verifier's sequences skipped them recently.
  bool drafts_do_not_pay() const;
  /// Handles a drafter's message about this round.
  Next on_message(DrafterSeats::Replica& replica, const Message& message);
  /// Handles a drafter's undecodable message.
  Next on_unreadable(DrafterSeats::Replica& replica);
  /// Handles unrequested drafts of the round that begins at `base`.
  Next on_ahead(const PeerId& drafter, Position base, Candidates guess);
  /// Handles the passing of time while drafts are outstanding.
  Next on_tick();
  /// Returns the time of the next on_tick(), if drafts are not worth a longer wait.
  std::optional<TimePoint> deadline() const;
  /// Handles the loss of a drafter: the round does not wait for it any more.
  Next lose(const PeerId& drafter);

 private:
  /// Returns true if drafts would be welcome, none of the sequence's drafters can make them, and another drafter could.
  bool lacks_drafter() const;
  /// Time-out of a drafter in a round: half a second, or four forward passes of the verifier where these are long, but
  /// 10 s at most. Several sequences of a large model wait for a drafter in turn, and for rows of its prompts. The
  /// drafter is asked again after its next message. Losing a round of drafts costs little; waiting for a dead drafter
  /// costs the user much.
  Duration timeout() const;

  /// Continues after the loss of a drafter's answer: ends drafting if no other answer is outstanding.
  Next go_on_without() const;
  /// Handles requested drafts. @param most  maximum number taken
  Next on_candidates(const PeerId& drafter, const Candidates& candidates, bool sound, std::int64_t most);
  void send_draft(const DrafterSeats::Replica& replica, int draft_length, int guesses, bool has_drafts);
  /// Checks that drafts are a chain or a tree of at most `most` tokens of the model, with a distribution each or none
  /// at all. Logs a warning otherwise.
  bool is_sound(const PeerId& drafter, const Candidates& drafts, std::int64_t most) const;
  /// Returns true if the policy may use token trees. It may not if the answer depends on the drafts: the answer would
  /// then depend on measured times.
  bool may_draft_trees() const;
  /// Returns true if the drafter may draft ahead when drafting ahead pays: by the request, or by default if the round
  /// trip to the drafter takes a millisecond or more. A nearer drafter mostly takes cores of the verifier's machine;
  /// otherwise it hides no more time than older drafts lose (docs/lab/ahead.md). Heartbeats measure the round trip,
  /// without the waits of a busy machine.
  bool may_draft_ahead() const;
  /// Returns the number of outcomes to draft ahead for in a round of so many drafts.
  int guesses_wanted(std::int64_t draft_length) const;
  /// Begins the round with at most `draft_length` drafts made ahead. @return their number
  std::int64_t take_ahead(std::int64_t draft_length);

  SessionState& state_;
  Environment& environment_ = state_.environment;
  const Sequence& sequence_ = state_.sequence;
  const VerifierSeat& verifier_ = state_.verifier;
  DrafterSeats& drafters_ = state_.drafters;
  Round& round_ = state_.round;
  const bool drafts_plainly_;  ///< drafters need no sampling parameters: they take the most probable tokens
};

// ---- looked-up drafts, which cost nothing (lookups.cc) ----

/// Returns a source's drafts after these tokens, from the sequence itself or a table.
Candidates look_up(const SessionState& session, DraftSource source, std::span<const TokenId> tokens, std::int64_t most);
/// Adds the request's looked-up sources to the round's drafts, then the lookups that `auto` finds worth their rows.
void add_looked_up(SessionState& session);

}  // namespace outrider
