#pragma once

#include <array>
#include <cstdint>

#include "common/decoding/drafting/draft_policy.h"
#include "common/decoding/drafting/fading_mean.h"
#include "common/decoding/drafting/fading_sums.h"
#include "common/decoding/drafting/forgetting.h"
#include "common/decoding/drafting/survival.h"
#include "common/decoding/drafting/tree_gain.h"
#include "common/decoding/drafting/verify_time.h"

namespace outrider {

/// What drafts of a source cost that a drafter makes.
struct DraftCost {
  FadingLine pass_s;  ///< of a drafter's forward pass by its rows: T_d(M)
  FadingLine wire_s;  ///< by bytes of the request: RTT and 1 / bandwidth
  FadingLine bytes;   ///< of the request by its K/V rows
  /// Passes of each draft behind the first: 1 of a drafter that makes a draft a pass, 0 of one that makes a block.
  FadingMean behind{keeps::kLine};

  /// That so many drafts for one sequence take.
  double passes(int count) const { return behind.empty() || count < 2 ? count : 1 + behind.value() * (count - 1); }
};

/// The row in Estimates::drafts of what a round of this source waits for: beside looked-up drafts the assistant's,
/// which others wait for, or which came too late.
inline std::size_t index_of_made(DraftSource source) {
  return static_cast<std::size_t>(is_looked_up(source) ? DraftSource::kAssistant : source);
}

/// Whether a round ends in one of the ways that the drafter drafted ahead for (a hit: the next round's drafts are there
/// already), learned from the rounds of all sessions of a verifier.
class AheadHits {
 public:
  /// The round before was drafted ahead for. @param all_held every draft of it held. @param hit it ended in one of
  /// those ways. @param wait_s for the drafts, all the same: they were on their way.
  void observe(bool all_held, bool hit, double wait_s);
  /// The chance of a hit after a round of whose drafts all hold with the chance `survives`. @param next how likely one
  /// more draft is to hold then: what counts until rounds have shown it.
  double chance(double survives, double next) const;
  /// Mean wait in a hit.
  double wait_s() const { return wait_.value(); }

 private:
  FadingMean after_all_{keeps::kAheadHit}, after_loss_{keeps::kAheadHit}, wait_{keeps::kAheadWait};
};

/// All that is learned from the rounds of a verifier's sequences, which share it: what rounds cost, and how drafts
/// fare. round_cost.h makes costs of it. Whoever owns it tells it of a round before the sequence's policy hears of the
/// round. How fast each of these forgets is in forgetting.h.
struct Estimates {
  // Forward passes. T(M) is `usual` times `load`. A neighbour's burst makes passes longer whatever their M: if that of
  // the moment alone told of it, all others would seem cheap.
  VerifyTime lately;           ///< T(M) by what each M took last: for a sequence alone
  VerifyTime usual;            ///< T(M) / load
  double load = 1;             ///< how much longer passes take now than they usually do
  std::int64_t last_pass = 0;  ///< RoundOutcome::pass: every sequence of a pass tells of it, and it counts once
  FadingMean other_rows{keeps::kRound};  ///< rows of other sequences in a pass

  // Rounds.
  std::int64_t plain_rounds = 0;
  FadingMean plain_s{keeps::kRound};  ///< a plain round, whole
  FadingMean other_s{keeps::kRound};  ///< what a round takes beside its pass, its drafts and its wait for the pass
  FadingMean wanted{keeps::kWanted};  ///< share of the rounds that wanted drafts of a drafter

  // Drafts.
  std::array<DraftCost, kDraftSources> drafts;   ///< a row each source; those that are looked up stay empty
  FadingMean tree_draft_s{keeps::kTreeDraft};    ///< each draft of a tree
  FadingMean tokens_asked{keeps::kAheadTokens};  ///< a round whose drafts were asked for emits
  FadingMean tokens_ahead{keeps::kAheadTokens};  ///< a round whose drafts were made ahead emits
  AheadHits ahead;
  SourceSurvival survival{keeps::kAccepted, keeps::kAccepted};
  TreeGain trees{keeps::kTreeGain};

  void observe(const RoundOutcome& outcome);
  /// Of a round whose drafts say nothing of any source's, the forward pass alone.
  void observe_pass(const RoundOutcome& outcome);

  /// Enough plain rounds were seen to say what one costs.
  bool knows_plain() const { return plain_rounds >= 3; }
  /// Forward passes of several Ms were seen; until then nothing says what a further row costs.
  bool knows_rows() const { return lately.knows_several(); }
  /// T(M) of a sequence alone, as one hopes.
  double verify_s(int rows) const { return lately.hoped(rows); }
  /// T(M) as it probably is now.
  double likely_verify_s(int rows) const { return usual.likely(rows) * load; }
  double likely_row_s(int rows) const { return usual.row_s(rows, usual.likely(rows)) * load; }
  int rows_most() const { return lately.rows_most(); }
  /// Whether rounds have wanted drafts of a drafter lately, or none has ended.
  bool wants_drafts() const { return wanted.empty() || wanted.value() >= 0.25; }
  /// Rows of other sequences that were in the last rounds' forward passes.
  int others() const;

 private:
  /// Drafts that a drafter made.
  void observe_made(const RoundOutcome& outcome);
  /// Drafts that did not come in time: they cost at least the wait.
  void observe_late(const RoundOutcome& outcome);
  void observe_plain(const RoundOutcome& outcome);
};

/// What a sequence's own rounds say of its drafts, leaning on what those of all sequences say.
struct SequenceEstimates {
  SourceSurvival survival;
  TreeGain trees;
  bool has_begun = false;  ///< a round of it has ended
  int last_length = 0;     ///< of its last chain: a sequence in company stays with it (kClearly)

  /// @param all  outlives this.
  explicit SequenceEstimates(const Estimates& all)
      : survival(keeps::kOwnAccepted, keeps::kOwnAcceptedBehind, &all.survival),
        trees(keeps::kOwnTreeGain, &all.trees) {}
  void observe(const RoundOutcome& outcome);
};

}  // namespace outrider
