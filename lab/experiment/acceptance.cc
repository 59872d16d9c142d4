#include "lab/experiment/acceptance.h"

#include <algorithm>

namespace outrider {

void Acceptance::add(const RoundOutcome& round) {
  const std::vector<std::int64_t> held(static_cast<std::size_t>(round.accepted), 1);
  add({.drafted = std::vector<std::int64_t>(static_cast<std::size_t>(round.drafted), 1), .accepted = held});
}

void Acceptance::add(const Acceptance& other) {
  drafted.resize(std::max(drafted.size(), other.drafted.size()));
  accepted.resize(drafted.size());
  for (std::size_t i = 0; i < other.drafted.size(); ++i) drafted[i] += other.drafted[i];
  for (std::size_t i = 0; i < other.accepted.size(); ++i) accepted[i] += other.accepted[i];
}

std::vector<double> Acceptance::shares() const {
  std::vector<double> shares;
  for (std::size_t i = 0; i < drafted.size(); ++i)
    shares.push_back(drafted[i] == 0 ? 0 : static_cast<double>(accepted[i]) / static_cast<double>(drafted[i]));
  return shares;
}

}  // namespace outrider
