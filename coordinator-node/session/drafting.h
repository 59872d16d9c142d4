#pragma once

#include <span>

#include "coordinator-node/session/session_state.h"

namespace outrider {

/// How a round comes to its drafts: the policy chooses a source and a length, drafters are asked, and what costs
/// nothing is looked up beside their drafts.
class Drafting {
 public:
  explicit Drafting(SessionState& state);

  /// Opens a round. @param kv  what the last one committed
  void open_round(KvRows kv);
  /// Lets the policy choose a length and a source, and begins. @pre there is a policy
  Next begin();
  /// Asks for drafts if there is somebody to draft, else goes on as without drafts.
  Next ask(std::int64_t draft_length);
  /// Whether drafters get the sequence's tokens only when drafts are wanted: its policy may leave drafts out, and the
  /// policies of the verifier's sequences did so lately.
  bool spares_drafters() const;
  /// A drafter said something of this round.
  Next on_message(DrafterSeats::Replica& replica, const Message& message);
  /// What a drafter said cannot be read.
  Next on_unreadable(DrafterSeats::Replica& replica);
  /// Drafts that nobody asked for, of the round that begins at `base`.
  Next on_ahead(const PeerId& drafter, Position base, Candidates guess);
  /// Drafts are not there yet.
  Next on_tick();
  /// When on_tick() is due next, if drafts are not worth a longer wait.
  std::optional<TimePoint> deadline() const;
  /// One of its drafters is gone: the round need not wait for it any more.
  Next lose(const PeerId& drafter);

 private:
  /// A drafter that has not answered by then is left out of the round; it is asked again once it is heard. Losing a
  /// round of drafts costs little, waiting for a dead drafter costs a user's patience.
  static constexpr Duration kTimeout = std::chrono::milliseconds(500);

  /// One drafter less is waited for: ends drafting if it was the last.
  Next go_on_without() const;
  /// Drafts came from a drafter that was asked.
  Next on_candidates(const PeerId& drafter, const Candidates& candidates);
  void send_draft(const DrafterSeats::Replica& replica, std::int64_t draft_length, int guesses, bool has_drafts);
  /// Whether drafts are `most` tokens of the model at most, with as many distributions or none, and a chain or a tree.
  /// Warns of others.
  bool is_sound(const PeerId& drafter, const Candidates& drafts, std::int64_t most) const;
  /// Whether the policy may have token trees drafted: not where drafts have a say in the sequence, and measured times
  /// would.
  bool may_draft_trees() const;
  /// Whether its drafter may draft ahead, where that pays: unless the request says so, one that is a millisecond away
  /// or more. What is nearer mostly shares the verifier's machine and takes its cores, and elsewhere hides no more time
  /// than staler drafts lose (docs/lab/ahead.md). Their heartbeats tell: waits of a busy machine are not in these.
  bool may_draft_ahead() const;
  /// Outcomes of a round of so many drafts for which the drafter is to draft ahead.
  int guesses_wanted(std::int64_t draft_length) const;
  /// Begins the round with drafts that were made ahead, `draft_length` of them at most. @return how many there were
  std::int64_t take_ahead(std::int64_t draft_length);

  SessionState& state_;
  Environment& environment_ = state_.environment;
  const Sequence& sequence_ = state_.sequence;
  const VerifierSeat& verifier_ = state_.verifier;
  DrafterSeats& drafters_ = state_.drafters;
  Round& round_ = state_.round;
  const bool drafts_plainly_;  ///< a drafter need not know of the sampling: it takes the most probable tokens
};

// ---- drafts that cost nothing, since they are looked up (lookups.cc) ----

/// What a source, the sequence itself or a table, has to say after these tokens.
Candidates look_up(const SessionState& session, DraftSource source, std::span<const TokenId> tokens, std::int64_t most);
/// Adds to the round's drafts what the request wants looked up, and behind them what `auto` finds worth its rows.
void add_looked_up(SessionState& session);

}  // namespace outrider
