#pragma once

#include "common/wire/messages/messages.h"
#include "common/wire/transport/gatekeeper.h"

namespace outrider {

/// Holds a message against who has sent it: only a verifier's key may say Hello as one, only a client's may ask for
/// texts. Puts the key's name before the one that a worker gives itself, and before the one that a client gives those
/// whom it asks for: whose turn it is nobody says for another key, and all connections of a key share theirs.
/// @return kMismatch with what its key is for.
Result<void> admit(const Identity& identity, Message& message);

}  // namespace outrider
