#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "common/policy/draft_policy.h"
#include "common/policy/fading_mean.h"
#include "common/policy/fading_sums.h"
#include "common/policy/tree_gain.h"

namespace outrider {

/// The parts that a round's time is made of. The drafter waits for the verdict and the verifier for the drafts, but for
/// what is drafted ahead (CostModel::terms_ahead).
struct RoundTerms {
  double verify_s = 0;     ///< T(g + 1)
  double draft_s = 0;      ///< T_d(M) for each pass of the assistant
  double rtt_s = 0;        ///< to the drafter and back
  double bytes = 0;        ///< to the drafter
  double s_per_byte = 0;   ///< 1 / bandwidth
  double other_s = 0;      ///< what a plain round pays as well: the verifier's wire, the loops
  double saved_s = 0;      ///< by drafting ahead, on average
  double after_all_s = 0;  ///< by drafting ahead, where all drafts hold and nothing behind them does
  /// The wait for drafts that are asked for.
  double drafting_s() const { return draft_s + rtt_s + bytes * s_per_byte; }
  double seconds() const { return verify_s + drafting_s() + other_s - saved_s; }
};

/// Tokens per second of rounds that emit tau tokens each (tau = 1 + the sum of the survivals, Leviathan et al.
/// 2023 equation 1 without the assumption that every position accepts alike).
inline double tokens_per_second(double tau, const RoundTerms& terms) { return tau / terms.seconds(); }

/// T(M): seconds of a verifying forward pass of M rows, learned online: points that never fall (pool adjacent
/// violators). The last few rounds of an M decide its point.
class VerifyTime {
 public:
  /// rows from 1.
  void observe(int rows, double seconds);
  /// On the lines between the points, and behind the last as steep as it rose on average: were it flat there, many
  /// drafts would be planned for ever, since texts for which so large a pass is too long take turns. 0 while nothing
  /// was measured.
  double likely(int rows) const;
  /// Of a text alone an M that was not measured costs what the next smaller one does that was: true inside a tile of
  /// rows, and elsewhere hopeful enough that the M is tried once. Of many texts each would add a row that seems free.
  double hoped(int rows) const;
  /// What each of `rows` takes on average, of those beyond the fewest that were measured, if all take `seconds`.
  double row_s(int rows, double seconds) const;
  /// Whether so many rows were measured in the last 200 passes or so.
  bool knows(int rows) const;
  /// So many rows may be tried: twice the most that were.
  int rows_most() const;

 private:
  static constexpr int kSingle = 33;  ///< of a text alone
  struct Cell {
    double rows = 0, sum = 0, weight = 0;
  };
  struct Point {
    double rows, seconds;
  };
  static std::size_t cell_of(int rows);
  std::array<Cell, 64> cells_ = {};  ///< one an M, then wider
  std::vector<Point> curve_;         ///< by rows; a point where a cell is
};

/// y = intercept + slope * x by least squares that forget; the slope is never negative and is 0 until the
/// xs differ.
class FadingLine {
 public:
  void observe(double x, double y) { sums_.observe(x, y, /*keep=*/0.95); }
  /// Lowers the line a little.
  void fade();
  double slope() const;
  double intercept() const;
  bool empty() const { return sums_.n <= 0; }

 private:
  FadingSums sums_;
};

/// How likely draft i of a round is to hold when those before it did, counted with exponential forgetting.
/// Where little was counted it leans on `prior`, or without one on the position before.
class Survival {
 public:
  /// @param keep weight of the past at each trial. @param prior nullptr, or one that outlives this.
  explicit Survival(double keep, const Survival* prior = nullptr) : keep_(keep), prior_(prior) {}
  /// A round without drafts lets all that was counted fade: what was bad then need not be now.
  void observe(int drafted, int accepted);
  /// a_1 .. a_length, each in (0, 1).
  std::array<double, kDraftLengthMax> conditional() const;

 private:
  struct Count {
    double held = 0, tried = 0;
  };
  std::array<Count, kDraftLengthMax> counts_ = {};
  double keep_;
  const Survival* prior_;
};

/// Survival of each source's drafts, from the text's last token and behind the last draft of another source.
class SourceSurvival {
 public:
  /// As of Survival. @param keep_behind  for what is looked up behind others
  SourceSurvival(double keep, double keep_behind, const SourceSurvival* prior = nullptr);
  void observe(const RoundOutcome& outcome);
  /// Drafts of this source were not tried behind others: lets what was counted fade, as what was bad need not be now.
  void fade_behind(DraftSource source) { behind_[static_cast<std::size_t>(source)].observe(0, 0); }
  const Survival& of(DraftSource source) const { return of_[static_cast<std::size_t>(source)]; }
  const Survival& behind(DraftSource source) const { return behind_[static_cast<std::size_t>(source)]; }
  /// Tokens that a round with the drafts of `begun` emits on average, and the chance that all of them hold.
  struct Reach {
    double tokens = 1, survives = 1;
  };
  Reach reach(const RoundOutcome& begun) const;
  /// What is looked up behind the assistant's drafts, on average.
  struct Followed {
    double rows = 0;    ///< of a round
    double tokens = 0;  ///< of one whose drafts all hold
  };
  Followed followed() const;

 private:
  std::array<Survival, kDraftSources> of_, behind_;
  FadingMean rows_, tokens_;
  const SourceSurvival* prior_;
};

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
  FadingMean after_all_{0.98}, after_loss_{0.98}, wait_{0.95};
};

/// What else is done while a round is: rows of other texts to verify, and drafts to make for them.
struct Company {
  int texts = 0, rows = 0, drafts = 0;
  int longest = 0;   ///< most of these drafts for one text: so many passes of the assistant for each half of the texts
  int drafters = 1;  ///< that make them
  double drag = 1;   ///< how much longer than the drafts themselves the texts are kept by them
};

/// What rounds cost and how drafts fare, learned from every session of a verifier. They share it;
/// whoever owns it calls observe() once a round, before the session's policy hears of the round.
class CostModel {
 public:
  void observe(const RoundOutcome& outcome);
  /// Of a round whose drafts say nothing of any source's, the forward pass alone.
  void observe_forward(const RoundOutcome& outcome);

  /// Enough plain rounds were seen to say what one costs.
  bool knows_plain() const { return plain_rounds_ >= 3; }
  /// Seconds of a plain round, whole; 0 while none was seen.
  double plain_s() const { return plain_.value(); }
  /// @param length 0 for a plain round. @param tau tokens that the rounds emit on average: their K/V travel.
  ///        Costs that were never seen count as 0, so that a source is worth one try.
  RoundTerms terms(DraftSource source, int length, double tau, const Company& company = {}) const;
  /// The same where the assistant drafts ahead, which takes h * (w - e) off the round:
  ///
  ///   w = T_d + RTT + bytes / bandwidth, the wait for drafts that are asked for,
  ///
  /// e what is left of it in a hit and what the tokens take that drafts from a staler state lose, h the chance of a
  /// hit. The drafter would be idle. @param survives the chance that all of `length` drafts hold. @param next that one
  /// more would then.
  RoundTerms terms_ahead(int length, double tau, double survives, double next, const Company& company = {}) const;
  /// A round has begun whose drafts were tried to be made ahead: see AheadHits.
  void observe_ahead(bool all_held, bool hit, double wait_s) { ahead_.observe(all_held, hit, wait_s); }
  /// Whether drafting ahead pays in rounds of so many drafts, as far as is known.
  bool ahead_pays(int length) const;
  /// The same of a round with a token tree of so many drafts.
  RoundTerms tree_terms(int drafts, double tau) const;
  /// What each draft of such a tree takes on average, its row and its drafting: worth it is one that brings the tokens
  /// that the text goes on by meanwhile.
  double tree_draft_price_s(int drafts) const;
  const SourceSurvival& survival() const { return survival_; }
  const TreeGain& trees() const { return trees_; }
  /// Seconds of a round of `terms` and of one of each text of its company. They all meet in one forward pass, or one
  /// half is drafted for while the other is verified (drafter_core.h): as the verifier chooses (batch_window.h). Of N
  /// texts with R rows each half that waits for the other gains 2 T(R / 2) - T(R) and loses the time of the drafts.
  double together_s(const RoundTerms& terms, const Company& company, int length) const;
  /// T(M) of a text alone, as one hopes, by what each M took last.
  double verify_s(int rows) const { return verify_.hoped(rows); }
  /// T(M) as it probably is now: what it usually is, times the load.
  double likely_verify_s(int rows) const { return usual_.likely(rows) * load_; }
  double likely_row_s(int rows) const { return usual_.row_s(rows, usual_.likely(rows)) * load_; }
  /// How much longer forward passes take now than they usually do. A neighbour's burst makes them longer whatever their
  /// M: if that of the moment alone told of it, all others would seem cheap.
  double load() const { return load_; }
  int rows_most() const { return verify_.rows_most(); }
  /// Rows of other texts that were in the last rounds' forward passes.
  int others() const;

 private:
  /// The share of its tokens by which a round of drafts made ahead, from a staler state, falls short of one whose
  /// drafts are asked for; 0 until enough were seen.
  double lost_ahead() const;
  /// Of any text: every text of a pass tells of it.
  void observe_pass(int rows, double seconds);
  /// What drafts of the assistant cost; those that are looked up cost nothing.
  struct DraftCost {
    FadingLine pass_s;  ///< of an assistant's forward by its rows: T_d(M)
    FadingLine wire;    ///< seconds by bytes
    FadingLine bytes;   ///< by K/V rows
  };
  VerifyTime verify_, usual_;
  double load_ = 1;
  double last_verify_s_ = -1;
  FadingMean plain_{0.9}, other_{0.9}, others_{0.9};
  std::int64_t plain_rounds_ = 0;
  DraftCost drafts_;
  SourceSurvival survival_{0.995, 0.995};
  AheadHits ahead_;
  TreeGain trees_{0.99};
  FadingMean tree_draft_s_{0.95};                       ///< of each draft of a tree
  FadingMean tokens_asked_{0.98}, tokens_ahead_{0.98};  ///< of the assistant's rounds
};

}  // namespace outrider
