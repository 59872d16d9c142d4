#pragma once

#include <cstdint>

#include "common/wire/messages/messages.h"

namespace outrider {

/// Soft tokens of a picture or a sound.
struct SoftTokens {
  std::int64_t count = 0;
  bool together = false;  ///< they attend to each other, so that one forward pass must hold all of them
};

/// Checks that a medium is finite soft tokens, encoded for a model with these facts.
/// @return kMismatch, or kMalformed with a number that is not finite
Result<void> check_encoded(const PairFacts& facts, const WireMedium& medium);

}  // namespace outrider
