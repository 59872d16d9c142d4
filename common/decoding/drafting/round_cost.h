#pragma once

#include "common/decoding/drafting/estimates.h"

// What a round costs: the equations of docs/policy.md, "Model", under the same numbers. All are pure.
namespace outrider {

/// (2) The parts that a round's time is made of. The drafter waits for the verdict and the verifier for the drafts, but
/// for what is drafted ahead.
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

/// What else is done while a round is: rows of other sequences to verify, and drafts to make for them.
struct Company {
  int texts = 0, rows = 0, drafts = 0;
  int longest =
      0;  ///< most of these drafts for one sequence: so many passes of the assistant for each half of the sequences
  int drafters = 1;       ///< that make them
  double contention = 1;  ///< how much longer than the drafts themselves the sequences are kept by them
};

/// What the other sequences of a verifier do, if they follow the plan (BatchGoodput).
struct Others {
  Company company = {};
  double tokens = 0;  ///< that a round of each emits, on average, together
};

/// (3) and (4).
/// @param length 0 for a plain round. @param tau tokens that the rounds emit on average: their K/V travel.
///        Costs that were never seen count as 0, so that a source is worth one try.
RoundTerms round_terms(const Estimates& estimates, DraftSource source, int length, double tau,
                       const Company& company = {});

/// (5) The same where the assistant drafts ahead, which takes h * (w - e) off the round. The drafter would be idle.
/// @param survives the chance that all of `length` drafts hold. @param next that one more would then.
RoundTerms ahead_terms(const Estimates& estimates, int length, double tau, double survives, double next,
                       const Company& company = {});
/// Whether drafting ahead pays in rounds of so many drafts, as far as is known.
bool ahead_pays(const Estimates& estimates, int length);

/// (6) The same as round_terms() of a round with a token tree of so many drafts.
RoundTerms tree_terms(const Estimates& estimates, int drafts, double tau);
/// (7) What each draft of such a tree takes on average, its row and its drafting: worth it is one that brings the
/// tokens that the sequence goes on by meanwhile.
double tree_draft_price_s(const Estimates& estimates, int drafts);

/// (8) Seconds of a round of `terms` and of one of each sequence of its company. They all meet in one forward pass, or
/// one half is drafted for while the other is verified (drafter_core.h): as the verifier chooses (batch_window.h).
double together_s(const Estimates& estimates, const RoundTerms& terms, const Company& company, int length);

}  // namespace outrider
