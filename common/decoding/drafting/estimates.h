#pragma once

#include <array>
#include <cstdint>

#include "common/decoding/drafting/draft_policy.h"
#include "common/decoding/drafting/fading.h"
#include "common/decoding/drafting/forgetting.h"
#include "common/decoding/drafting/survival.h"
#include "common/decoding/drafting/tree_gain.h"
#include "common/decoding/drafting/verify_time.h"

namespace outrider {

/// Learns how many times as long a draft takes while a forward pass runs, because both share cores or memory.
class SharedCores {
 public:
  /// Records a forward pass; seconds of one clock.
  void on_pass(double began_s, double ended_s);
  /// Returns the share of this time in which a forward pass ran.
  double beside_passes(double began_s, double ended_s) const;
  /// Observes a drafter's pass. @param beside  share of its time in which a forward pass ran
  void observe(double beside, double pass_s);
  /// Returns the factor, at least 1; `unknown` until drafts were made both ways.
  double slowdown(double unknown) const { return slowdown_.factor(unknown); }

 private:
  struct Interval {
    double began_s = 0, ended_s = 0;
  };
  std::array<Interval, 8> passes_ = {};  ///< the last forward passes; the next one replaces passes_[next_]
  std::size_t next_ = 0;
  Slowdown slowdown_;
};

/// Cost of a source's drafts that a drafter makes.
struct DraftCost {
  FadingLine pass_s;  ///< time of a drafter's forward pass by rows while the verifier is idle: T_d(M)
  FadingLine wire_s;  ///< time by bytes of the request: RTT and 1 / bandwidth
  FadingLine bytes;   ///< bytes of the request by its K/V rows
  /// Passes per draft after the first: 1 for a drafter that makes one draft per pass, 0 for one that makes a block.
  FadingMean behind{keeps::kLine};

  /// Returns the passes of `count` drafts for one sequence.
  double passes(int count) const { return behind.empty() || count < 2 ? count : 1 + behind.value() * (count - 1); }
};

/// Row in Estimates::drafts that a round of this source updates: with looked-up drafts the assistant's, since other
/// sequences wait for these, or they came too late.
inline std::size_t index_of_made(DraftSource source) {
  return static_cast<std::size_t>(is_looked_up(source) ? DraftSource::kAssistant : source);
}

/// Learns how often a round ends in an outcome that the drafter drafted ahead for (a hit: the next round's drafts are
/// already there), from the rounds of all sessions of a verifier.
class AheadHits {
 public:
  /// Observes a round that was drafted ahead for.
  /// @param all_held  all of its drafts were accepted
  /// @param hit  its outcome was among those
  /// @param wait_s  remaining wait for drafts in transit
  void observe(bool all_held, bool hit, double wait_s);
  /// Returns the probability of a hit after a round whose drafts are all accepted with probability `survives`.
  /// @param next  probability that one more draft is accepted then: the prior until rounds were observed
  double chance(double survives, double next) const;
  /// Returns the mean wait in a hit.
  double wait_s() const { return wait_.value(); }

 private:
  FadingMean after_all_{keeps::kAheadHit}, after_loss_{keeps::kAheadHit}, wait_{keeps::kAheadWait};
};

/// Everything learned from the rounds of a verifier's sequences, which share it: costs of rounds, and acceptance.
/// round_cost.h computes costs from it. The owner reports a round to it before the sequence's policy. forgetting.h has
/// the decay rates.
struct Estimates {
  // Forward passes: T(M) is `usual` times `load`. A neighbour's burst makes every pass longer. If only the current M
  // recorded it, all other Ms would seem cheap.
  VerifyTime lately;           ///< T(M) from the last pass of each M: for a sequence alone
  VerifyTime usual;            ///< T(M) / load
  double load = 1;             ///< ratio of current to usual times
  int last_rows = 0;           ///< of the last pass
  std::int64_t last_pass = 0;  ///< RoundOutcome::pass: all sequences of a pass report it, and it counts once
  FadingMean other_rows{keeps::kRound};  ///< rows of other sequences in a pass

  // Rounds.
  std::int64_t plain_rounds = 0;
  FadingMean plain_s{keeps::kRound};  ///< whole time of a plain round
  FadingMean other_s{keeps::kRound};  ///< time of a round besides its pass, its drafts and the wait for the pass
  FadingMean wanted{keeps::kWanted};  ///< share of rounds that wanted a drafter's drafts

  // Drafts.
  std::array<DraftCost, kDraftSources> drafts;   ///< by source; looked-up sources stay empty
  SharedCores shared_cores;
  FadingMean tree_draft_s{keeps::kTreeDraft};    ///< time per draft of a tree
  FadingMean tokens_asked{keeps::kAheadTokens};  ///< tokens per round with requested drafts
  FadingMean tokens_ahead{keeps::kAheadTokens};  ///< tokens per round with drafts made ahead
  AheadHits ahead;
  SourceSurvival survival{keeps::kAccepted, keeps::kAccepted};
  TreeGain trees{keeps::kTreeGain};

  /// @param ended_s  end of the round, in seconds of a clock
  void observe(const RoundOutcome& outcome, double ended_s);
  /// Observes the forward pass alone, of a round whose drafts are not representative.
  void observe_pass(const RoundOutcome& outcome, double ended_s);

  /// Returns true once enough plain rounds were seen to know their cost.
  bool knows_plain() const { return plain_rounds >= 3; }
  /// Returns true once passes of several Ms were seen; before that, the cost of a further row is unknown.
  bool knows_rows() const { return lately.knows_several(); }
  /// Returns T(M) of a sequence alone, optimistically.
  double verify_s(int rows) const { return lately.optimistic_s(rows); }
  /// Returns the probable T(M) at present.
  double likely_verify_s(int rows) const { return usual.likely(rows) * load; }
  double likely_row_s(int rows) const { return usual.row_s(rows, usual.likely(rows)) * load; }
  int rows_most() const { return lately.rows_most(); }
  /// Returns how many times as long a draft takes beside a forward pass. Until that was measured it is 1 for a drafter
  /// at a distance. For a near one it is 2, as if both had the same cores: sequences then meet in one pass. Halves that
  /// take turns on shared cores would never show what a meeting gains.
  double slowdown_beside_passes() const;
  /// Returns true when recent rounds wanted a drafter's drafts, or no round has ended yet.
  bool wants_drafts() const { return wanted.empty() || wanted.value() >= 0.25; }
  /// Rows of other sequences in recent forward passes.
  int others() const;

 private:
  /// Observes drafts that a drafter made.
  void observe_made(const RoundOutcome& outcome, double ended_s);
  /// Observes drafts that came too late: they cost at least the wait.
  void observe_late(const RoundOutcome& outcome);
  void observe_plain(const RoundOutcome& outcome);
};

/// Acceptance of one sequence's drafts, with that of all sequences as prior.
struct SequenceEstimates {
  SourceSurvival survival;
  TreeGain trees;
  int last_length = 0;  ///< of its last chain: kept while there are other sequences (kClearly)

  /// @param all  outlives this object
  explicit SequenceEstimates(const Estimates& all)
      : survival(keeps::kOwnAccepted, keeps::kOwnAcceptedBehind, &all.survival),
        trees(keeps::kOwnTreeGain, &all.trees) {}
  void observe(const RoundOutcome& outcome);
};

}  // namespace outrider
