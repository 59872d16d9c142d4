#pragma once

namespace outrider::keeps {

// Decay of the estimates: the weight of the past at each observation. The comments give the half-life in observations
// (ln 2 / -ln keep).

// Over all sequences of a verifier (Estimates).
inline constexpr double kPassSameRows = 0.7;   ///< T(M), at a pass of M rows: 2 passes
inline constexpr double kPassAnyRows = 0.99;   ///< T(M), at any pass: 69 passes
inline constexpr double kRound = 0.9;          ///< a plain round, its fixed costs, other sequences' rows: 7 rounds
inline constexpr double kWanted = 0.99;        ///< rounds that want drafts: 69 rounds
inline constexpr double kLine = 0.95;          ///< T_d(M), RTT and bandwidth, bytes: 14 rounds with drafts
inline constexpr double kLineUnused = 0.9999;  ///< RTT and bandwidth, at a plain round: 6931 rounds
inline constexpr double kTreeDraft = 0.95;     ///< a draft of a tree: 14 rounds with trees
inline constexpr double kAccepted = 0.995;     ///< acceptance of a position: 138 trials of it
inline constexpr double kAheadHit = 0.98;      ///< hits of drafts made ahead: 34 rounds
inline constexpr double kAheadWait = 0.95;     ///< the wait in a hit: 14 hits
inline constexpr double kAheadTokens = 0.98;   ///< tokens of requested drafts, and of drafts made ahead: 34 rounds
inline constexpr double kTreeGain = 0.99;      ///< drafts kept of trees, and of chains: 69 rounds
// Per sequence (SequenceEstimates), with those above as priors. On nano's traces a memory of ten trials was better than
// 20 and 50, and equal to 5. After other drafts 20 equals 10 and 50, and detects a sequence that accepts none.
inline constexpr double kOwnAccepted = 0.9;         ///< 7 trials
inline constexpr double kOwnAcceptedBehind = 0.95;  ///< 14 trials
inline constexpr double kOwnTreeGain = 0.95;        ///< 14 rounds
// Of the governor, and of `tree:N`.
inline constexpr double kSurprise = 0.7;   ///< ratio of actual to predicted pass times: 2 rounds with drafts
inline constexpr double kTreeRate = 0.95;  ///< tokens and seconds of a round: 14 rounds

}  // namespace outrider::keeps
