#pragma once

#include "common/decoding/drafting/estimates.h"

// Costs of a round: the equations of docs/policy.md, "Model", under the same numbers. All are pure.
namespace outrider {

/// (2) The components of a round's time. The drafter waits for the verdict and the verifier for the drafts, except when
/// drafting ahead.
struct RoundTerms {
  double verify_s = 0;     ///< (3) T of all rows of the pass: g + 1, and the other sequences'
  double draft_s = 0;      ///< (4) D
  double passes_s = 0;     ///< the part of draft_s that does not depend on the number of sequences
  double rtt_s = 0;        ///< round trip to the drafter
  double bytes = 0;        ///< to the drafter
  double s_per_byte = 0;   ///< 1 / bandwidth
  double other_s = 0;      ///< time that a plain round has too: the verifier's wire, the loops
  double saved_s = 0;      ///< by drafting ahead, on average
  double after_all_s = 0;  ///< saved by drafting ahead when all drafts are accepted and nothing follows them
  /// Returns the wait for requested drafts.
  double drafting_s() const { return draft_s + rtt_s + bytes * s_per_byte; }
  double seconds() const { return verify_s + drafting_s() + other_s - saved_s; }
};

/// Returns tokens per second of rounds that emit tau tokens each (tau = 1 + the sum of the survivals, Leviathan et al.
/// 2023 equation 1 without the assumption that every position accepts alike).
inline double tokens_per_second(double tau, const RoundTerms& terms) { return tau / terms.seconds(); }

/// Work for other sequences during a round: rows to verify, and drafts to make.
struct OtherWork {
  int sequences = 0, rows = 0, drafts = 0;
  /// Most of these drafts for one sequence: so many passes of the assistant.
  int longest = 0;
  int drafters = 1;  ///< number of drafters that make them
};

/// The other sequences of a verifier, if they follow the plan (BatchGoodput).
struct Others {
  OtherWork other_work = {};
  double tokens = 0;  ///< mean tokens of a round of each, in total
};

/// (3) and (4).
/// @param length  0 for a plain round
/// @param tau  mean tokens of the rounds, whose K/V are sent. Unobserved costs count as 0, so that a source is tried
/// once.
RoundTerms round_terms(const Estimates& estimates, DraftSource source, int length, double tau,
                       const OtherWork& other_work = {});

/// (5) The same with drafting ahead, which takes h * (w - e) off the round, while the drafter would otherwise be idle.
/// @param survives  probability that all of `length` drafts are accepted @param next  that one more would be then
RoundTerms ahead_terms(const Estimates& estimates, int length, double tau, double survives, double next,
                       const OtherWork& other_work = {});
/// Returns true when drafting ahead pays at this length, according to the estimates.
bool ahead_pays(const Estimates& estimates, int length);

/// (6) round_terms() of a round with a token tree.
RoundTerms tree_terms(const Estimates& estimates, int drafts, double tau);
/// (7) Returns the mean time that each draft of such a tree takes, for its row and its drafting. A draft is worth it if
/// it brings more tokens than the sequence would emit in that time.
double tree_draft_price_s(const Estimates& estimates, int drafts);

/// (8) How all sequences of a verifier have one round each.
struct Together {
  /// One half is verified while the drafter drafts for the other (Draft::halves); else all meet in one forward pass.
  bool halves = false;
  double seconds = 0;
};
/// Returns the faster way. The coordinator asks the drafter for it, and the verifier waits accordingly (BatchWindow).
Together together(const Estimates& estimates, const RoundTerms& terms, const OtherWork& other_work, int length);

}  // namespace outrider
