#pragma once

#include "common/policy/throughput.h"

namespace outrider {

/// Seconds that drafting ahead takes off a round of so many drafts:
///
///   h * (w - e) - c,   w = g * t_d + RTT + bytes / bandwidth
///
/// w is the wait for drafts that are asked for, e what is left of it in a hit and what the tokens take that drafts from
/// a staler state lose, h the chance of a hit. The drafter's time costs nothing (c = 0) while it would be idle. Nearer
/// than a millisecond it is taken to sit on the verifier's machine: then c is the time of one more round's drafts, as
/// if the verifier's cores made them.
/// @param terms of a round whose drafts are asked for. @return at least 0: where it does not pay, nobody does it.
double ahead_gain_s(const RoundTerms& terms, int length, double hit, double left_s);

}  // namespace outrider
