#include "lab/statistics.h"

#include <algorithm>
#include <cmath>

#include "common/base/check.h"
#include "common/base/random.h"

namespace outrider {

double median(std::vector<double> values) {
  CHECK(!values.empty());
  return quantile(std::move(values), 0.5);
}

double quantile(std::vector<double> values, double p) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double place = p * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(place), above = std::min(below + 1, values.size() - 1);
  return values[below] + (place - static_cast<double>(below)) * (values[above] - values[below]);
}

double median_absolute_deviation(const std::vector<double>& values) {
  const double middle = median(values);
  std::vector<double> distances;
  for (const double value : values) distances.push_back(std::abs(value - middle));
  return median(distances);
}

Interval bootstrap_median(const std::vector<double>& ratios, std::uint64_t seed) {
  constexpr int kResamples = 2000;
  CounterRng rng(seed);
  std::vector<double> medians, sample(ratios.size());
  for (int i = 0; i < kResamples; ++i) {
    for (double& value : sample) value = ratios[rng.below(ratios.size())];
    medians.push_back(median(sample));
  }
  return {median(ratios), quantile(medians, 0.025), quantile(medians, 0.975)};
}

}  // namespace outrider
