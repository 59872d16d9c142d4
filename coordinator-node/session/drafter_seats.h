#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "coordinator-node/draft_ahead.h"
#include "coordinator-node/place.h"
#include "coordinator-node/session/session_base.h"

namespace outrider {

/// The drafters of a sequence, and the state of each.
class DrafterSeats {
 public:
  struct Replica {
    Place place;
    Position end = 0;         ///< rows sent to the drafter
    std::int64_t guided = 0;  ///< answer tokens at its last drafts: it knows `sampling`; 0: it does not
    bool asked = false;       ///< for this round's drafts, without an answer so far
    /// The drafter needs tokens. In this round it was sent more than it computes in a pass, or less than it lacks.
    bool behind = false;
    const PeerId& peer() const { return place.peer(); }
    /// Returns true if the drafter was sent everything that it needs to draft after the token at `base`.
    bool reaches(Position base, bool hidden) const {
      const Worker* drafter = place.worker();
      return end == base && !behind && drafter != nullptr && base < drafter->context() &&
             (hidden || !drafter->needs_rows());
    }
  };

  explicit DrafterSeats(SessionBase& session) : session_(session) {}

  std::vector<Replica> replicas = {};
  bool takes_more = true;  ///< false after take_no_more() of all drafters
  /// Returns the state of a drafter; nullptr if the peer does not draft for this sequence.
  Replica* find(const PeerId& drafter);
  std::vector<PeerId> peers() const;
  /// Returns the wanted number of drafters: one if the answer would depend on which drafter replies first.
  int wanted() const {
    const bool one = sequence_.output_depends_on_drafts() || sequence_.request.stepwise;
    return one ? 1 : environment_.config.drafters_per_sequence;
  }
  bool can_draft() const;
  /// Returns the number of drafters that make the drafts of all sequences, for each that this sequence has.
  int at_work() const { return std::max(1, environment_.fleet.drafters_at_work() / wanted()); }
  /// @param verifier  the sequence's
  DrafterRequirements requirements(const Worker& verifier) const;
  /// Returns the input of the first drafter; without drafters, the input of the last one.
  DraftInput needs() const { return needs_; }
  /// Chooses drafters until there are as many as wanted. @param verifier  the sequence's, whose rows the drafters get
  void assign(const Worker& verifier);
  /// Replaces drafters that drain or whose context the sequence has outgrown, and late drafters if there are others.
  void renew(const Worker& verifier);
  /// Tells a drafter, if it is connected, to forget the sequence.
  void release(PeerId drafter);
  /// Excludes drafters for the rest of the answer, after one refused the sequence against our accounting: the rows of a
  /// whole sequence are too many to be sent again and again.
  /// @param with_rows  excludes only drafters that need the verifier's rows, since these took too long
  void take_no_more(bool with_rows = false) { (with_rows ? takes_rows_ : takes_more) = false; }
  void set_in_round(bool drafting);

  /// Returns true while a drafter's drafts for this round are outstanding.
  bool awaits_drafts() const { return std::ranges::any_of(replicas, &Replica::asked); }
  /// Returns the first position whose K/V rows a drafter needs; none: no drafters, or token-only ones.
  std::optional<Position> rows_wanted() const;
  /// Returns the most exact rounding of rows that a drafter of the sequence wants.
  WireForm wire_form() const;
  /// Forwards a verifier's K/V rows to the drafters whose replicas they continue. @param from  the verifier
  void forward(KvRows kv, const PeerId& from);
  /// Sends token-only drafters the tokens that they lack, at most `most`. Only drafters whose drafts are wanted get
  /// them, since each computes K/V of them, perhaps on the verifier's cores.
  void send_tokens(std::int64_t most);
  /// Measures the round's bytes to the drafter. A sequence's first drafts wait for its prompt's rows too, and for
  /// useless drafts ahead.
  void weigh_wire(bool is_first);
  /// Returns the name of the round's drafter, if the client does not know it yet.
  std::string unreported();

  DraftAhead ahead = {};  ///< unrequested drafts of the drafters

 private:
  void send(Replica& replica, KvRows rows);

  SessionBase& session_;
  Environment& environment_ = session_.environment;
  const Sequence& sequence_ = session_.sequence;
  Round& round_ = session_.round;
  bool takes_rows_ = true;  ///< see take_no_more()
  DraftInput needs_ = DraftInput::kTargetRows;
  std::string reported_ = {};  ///< the drafter's name that the client knows (RoundReport)
};

}  // namespace outrider
