#pragma once

namespace outrider::keeps {

// How fast each estimate forgets: the weight that the past keeps at each observation. Behind it, after how many
// observations half of a value is forgotten (ln 2 / -ln keep).

// Of all sequences of a verifier (Estimates).
inline constexpr double kPassSameRows = 0.7;   ///< T(M), at a pass of M rows: 2 passes
inline constexpr double kPassAnyRows = 0.99;   ///< T(M), at any pass: 69 passes
inline constexpr double kRound = 0.9;          ///< a plain round, its fixed costs, the others' rows: 7 rounds
inline constexpr double kWanted = 0.99;        ///< rounds that want drafts: 69 rounds
inline constexpr double kLine = 0.95;          ///< T_d(M), RTT and bandwidth, bytes: 14 rounds with drafts
inline constexpr double kLineUnused = 0.9999;  ///< RTT and bandwidth, at a plain round: 6931 rounds
inline constexpr double kTreeDraft = 0.95;     ///< a draft of a tree: 14 rounds with trees
inline constexpr double kAccepted = 0.995;     ///< acceptance of a position: 138 trials of it
inline constexpr double kAheadHit = 0.98;      ///< hits of drafts made ahead: 34 rounds
inline constexpr double kAheadWait = 0.95;     ///< the wait in a hit: 14 hits
inline constexpr double kAheadTokens = 0.98;   ///< tokens of drafts asked for, and made ahead: 34 rounds
inline constexpr double kTreeGain = 0.99;      ///< what trees keep, and chains: 69 rounds
// Of one sequence (SequenceEstimates), which lean on those of all. On nano's traces a memory of ten trials was better
// than 20 and 50, and level with 5. Behind other drafts 20 is level with 10 and 50, and a sequence in which none is
// accepted is known as such.
inline constexpr double kOwnAccepted = 0.9;         ///< 7 trials
inline constexpr double kOwnAcceptedBehind = 0.95;  ///< 14 trials
inline constexpr double kOwnTreeGain = 0.95;        ///< 14 rounds
// Of the sequences that share passes (BatchGoodput), of the governor, and of `tree:N`.
inline constexpr double kContention = 0.98;  ///< 34 rounds of nothing but drafts
inline constexpr double kSurprise = 0.7;     ///< how much longer than predicted passes take: 2 rounds with drafts
inline constexpr double kTreeRate = 0.95;    ///< tokens and seconds of a round: 14 rounds

}  // namespace outrider::keeps
