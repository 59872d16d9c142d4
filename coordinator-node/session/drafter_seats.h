#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "coordinator-node/draft_ahead.h"
#include "coordinator-node/place.h"
#include "coordinator-node/session/session_base.h"

namespace outrider {

/// The drafters of a sequence, and what each holds of it.
class DrafterSeats {
 public:
  struct Replica {
    Place place;
    Position end = 0;         ///< rows that the drafter was sent
    std::int64_t guided = 0;  ///< tokens of the answer at its last drafts: it knows `sampling`; 0: it does not
    bool asked = false;       ///< for this round's drafts, and has not answered
    bool behind = false;      ///< it needs tokens, and was sent more in this round than it computes in a pass, or less
                              ///< than it lacks
    const PeerId& peer() const { return place.peer(); }
    /// Whether it was sent all that it needs to draft after the token at `base`.
    bool reaches(Position base, bool hidden) const {
      const Worker* drafter = place.worker();
      return end == base && !behind && drafter != nullptr && base < drafter->context() &&
             (hidden || !drafter->needs_rows());
    }
  };

  explicit DrafterSeats(SessionBase& session) : session_(session) {}

  std::vector<Replica> replicas = {};
  /// nullptr where the peer does not draft for this sequence.
  Replica* find(const PeerId& drafter);
  std::vector<PeerId> peers() const;
  /// Drafters that the sequence is to have. One where the sequence would depend on who answers first.
  int wanted() const {
    return sequence_.drafts_have_a_say() || sequence_.request.stepwise ? 1 : environment_.drafters_per_sequence;
  }
  bool can_draft() const;
  /// What the sequence's first drafter needs; without any what the last one needed.
  DraftInput needs() const { return needs_; }
  /// @param verifier  whose rows they get
  void assign(const Worker& verifier);
  /// Replaces drafters that drain or whose context the sequence has outgrown, and late ones where there are others.
  void renew(const Worker& verifier);
  /// Tells it, if it is there, to forget the sequence.
  void release(PeerId drafter);
  /// No drafter for the rest of the answer: one refused the sequence, against our accounting. The rows of a whole
  /// sequence are too many to try again and again.
  /// @param with_rows  none that needs the verifier's rows, which took too long; others still
  void take_no_more(bool with_rows = false) { (with_rows ? no_rows_ : none_) = true; }
  void set_in_round(bool drafting);

  /// Whether one that was asked for this round's drafts has not answered yet.
  bool awaits_drafts() const { return std::ranges::any_of(replicas, &Replica::asked); }
  /// First position whose K/V rows one of its drafters needs; none: nobody drafts, or by tokens alone.
  std::optional<Position> rows_wanted() const;
  /// What its drafters want their rows rounded to: of several the least.
  WireForm wire_form() const;
  /// Hands a verifier's K/V rows on to the drafters whose replicas they continue.
  /// @param from  the verifier
  void forward(KvRows kv, const PeerId& from);
  /// Sends the drafters that need tokens those that they do not have, `most` of them at most. One gets them only where
  /// its drafts are wanted: it would compute K/V of them, on the verifier's cores perhaps.
  void send_tokens(std::int64_t most);
  /// A round is over: what its bytes to the drafter cost. A sequence's first drafts wait for its prompt's rows too, and
  /// drafts made ahead for nothing.
  void weigh_wire(bool is_first);
  /// The name of who made the round's drafts, where the client does not know it yet.
  std::string unreported();

  DraftAhead ahead = {};  ///< the drafters', unasked

 private:
  /// @param verifier  the sequence's
  DrafterWish wish(const Worker& verifier) const;
  /// Whether its drafter answers, and needs this.
  bool gets(const Replica& replica, DraftInput input) const;
  void send(Replica& replica, KvRows rows);

  SessionBase& session_;
  Environment& environment_ = session_.environment;
  const Sequence& sequence_ = session_.sequence;
  Round& round_ = session_.round;
  bool none_ = false, no_rows_ = false;  ///< take_no_more()
  DraftInput needs_ = DraftInput::kTargetRows;
  std::string reported_ = {};  ///< the drafter's name, as the client knows it (RoundReport)
};

}  // namespace outrider
