#pragma once

#include "common/wire/messages/messages.h"
#include "common/wire/transport/gatekeeper.h"

namespace outrider {

/// Checks that the sender's key allows a message: only a verifier's key may send a verifier's Hello, only a client's
/// key may request answers. Prefixes the key's name to a worker's name, and to the client and the cache scope of a
/// request, so that no peer can use another key's names. All connections of a key share one turn in the queue.
/// @return kMismatch with the key's roles
Result<void> admit(const Identity& identity, Message& message);

}  // namespace outrider
