#pragma once

#include "common/protocol/messages.h"
#include "common/transport/gatekeeper.h"

namespace outrider {

/// Holds a message against who has sent it: only a verifier's key may say Hello as one, only a client's may ask for
/// texts. Puts the key's name before the one that a worker gives itself.
/// @return kMismatch with what its key is for.
Result<void> admit(const Identity& identity, Message& message);

}  // namespace outrider
