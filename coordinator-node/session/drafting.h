#pragma once

#include <span>
#include <vector>

#include "coordinator-node/session/drafter_seats.h"
#include "coordinator-node/session/verifier_seat.h"

namespace outrider {

/// How a round comes to its drafts: the policy chooses a source and a length, drafters are asked, and what costs
/// nothing is looked up beside their drafts.
class Drafting {
 public:
  /// What follows: nothing, waiting for the drafters that were asked, or the end of drafting.
  enum class Next { kNothing, kAsked, kDone };

  Drafting(Environment& environment, SessionId id, const Sequence& sequence, const VerifierSeat& verifier,
           DrafterSeats& drafters, const PendingRequest& pending, Round& round, Ledger& ledger);

  /// Lets the policy choose a length up to `room`, and begins. @pre there is a policy
  Next begin(std::int64_t room);
  /// Asks for drafts if there is somebody to draft, else goes on as without drafts.
  Next ask(std::int64_t draft_length);
  /// Whether its drafters do not follow the sequence before drafts are wanted: its policy may do without, and those of
  /// its verifier's sequences have lately.
  bool spares_drafters() const;
  /// Drafts came from a drafter that was asked, `waited` after the question.
  Next on_candidates(const PeerId& drafter, const Candidates& candidates, Duration waited);
  /// Drafts that nobody asked for, of the round that begins at `base`. @param waiting  for drafts, for so long
  Next on_ahead(const PeerId& drafter, Position base, Candidates guess, std::optional<Duration> waiting);
  /// A drafter that has not answered by then is left out of the round; it is asked again once it is heard. Losing a
  /// round of drafts costs little, waiting for a dead drafter costs a user's patience.
  static constexpr Duration kTimeout = std::chrono::milliseconds(500);
  void on_late(Duration waited);
  /// Adds what the request wants looked up beside the drafts, and what `auto` finds worth its rows.
  void add_looked_up();
  /// The round is over: logs its first draft that the verdict did not keep.
  void log_rejection(const Verdict& verdict) const;

 private:
  void send_draft(const DrafterSeats::Replica& replica, std::int64_t draft_length, int guesses, bool has_drafts);
  /// Whether drafts are tokens of the model, with as many distributions or none, and a chain or a tree.
  bool is_sound(const Candidates& drafts) const;
  void warn_of_drafts(const PeerId& drafter, const Candidates& drafts) const;
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
  /// What one of the sources that cost nothing has to say after these tokens.
  Candidates look_up(DraftSource source, std::span<const TokenId> tokens, std::int64_t most) const;
  /// The same behind drafts: nothing follows a stop.
  Candidates look_up_behind(DraftSource source, std::span<const TokenId> tokens, std::int64_t most) const;
  /// The sequence, and the first choices among the round's drafts as if they were accepted.
  std::vector<TokenId> tokens_with_drafts() const;
  void add_sources();
  void extend();
  bool logs_rejections() const { return environment_.want_rejections && !sequence_.request.stepwise; }

  Environment& environment_;
  const SessionId id_;
  const Sequence& sequence_;
  const bool drafts_plainly_;  ///< a drafter need not know of the sampling: it takes the most probable tokens
  const VerifierSeat& verifier_;
  DrafterSeats& drafters_;
  const PendingRequest& pending_;
  Round& round_;
  Ledger& ledger_;
};

}  // namespace outrider
