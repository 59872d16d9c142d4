#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lab/experiment/plan.h"

namespace outrider {

/// How many requests an open loop makes in a repeat: as many as arrive in `seconds`, and each question once at least.
std::size_t arrival_count(const Axes& axes, double seconds, std::size_t questions);

/// When they arrive, seconds from the repeat's start: gaps of a gamma distribution with the mean 1 / axes.arrivals.rate
/// and the shape axes.arrivals.burstiness. A shape of 1 makes them a Poisson process, a smaller one bursts, a larger
/// one regular.
std::vector<double> arrival_times(const Axes& axes, std::size_t count, std::uint64_t seed);

}  // namespace outrider
