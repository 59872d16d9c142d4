#pragma once

#include <cstdint>

#include "common/wire/messages/messages.h"

namespace outrider {

/// What a picture or a sound is to a model.
struct SoftTokens {
  std::int64_t count = 0;
  bool together = false;  ///< each is seen by all of them: they have to be in one forward pass
};

/// Whether a medium is the soft tokens that an encoder makes for a model with these facts, all of them finite.
/// @return kMismatch, or kMalformed with a number that is not
Result<void> check_encoded(const PairFacts& facts, const WireMedium& medium);

}  // namespace outrider
