#include "lab/experiment/arrivals.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace outrider {

std::size_t arrival_count(const Axes& axes, double seconds, std::size_t questions) {
  return std::max(questions, static_cast<std::size_t>(std::ceil(axes.arrivals.rate * seconds)));
}

std::vector<double> arrival_times(const Axes& axes, std::size_t count, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::gamma_distribution<double> gap(axes.arrivals.burstiness, 1 / (axes.arrivals.rate * axes.arrivals.burstiness));
  std::vector<double> times;
  double time = 0;
  while (times.size() < count) times.push_back(time += gap(random));
  return times;
}

}  // namespace outrider
