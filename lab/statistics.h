#pragma once

#include <cstdint>
#include <vector>

namespace outrider {

/// Takes at least one value, in any order. The median of an even number is the mean of the two in the middle.
double median(std::vector<double> values);
/// The value that a share `p` (0 to 1) of the values lies below, on the line between its two neighbours. 0 of none.
double quantile(std::vector<double> values, double p);
/// Median distance from the median; 0 for one value.
double median_absolute_deviation(const std::vector<double>& values);

/// A ratio's estimate: the measured median, and the middle 95 % of that median over resamples.
struct Interval {
  double median = 0, low = 0, high = 0;
};
/// The median of ratios that were taken side by side, one a repeat, with its bootstrap interval (Efron 1979, the
/// percentile method): repeats are drawn again with replacement, 2000 times. With three repeats that is hardly more
/// than their span. @pre there is at least one
Interval bootstrap_median(const std::vector<double>& ratios, std::uint64_t seed);

}  // namespace outrider
