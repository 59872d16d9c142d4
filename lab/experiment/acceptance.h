#pragma once

#include <cstdint>
#include <vector>

#include "common/policy/draft_policy.h"

namespace outrider {

/// Of the drafts at each position, how many there were, and how many held with all before them.
struct Acceptance {
  std::vector<std::int64_t> drafted = {}, accepted = {};

  void add(const RoundOutcome& round);
  void add(const Acceptance& other);
  std::vector<double> shares() const;
};

}  // namespace outrider
