#pragma once

#include <span>
#include <vector>

#include "common/wire/messages/messages.h"

namespace outrider {

/// A message on the wire: the header frame (a FlatBuffer, schemas/outrider.fbs), then one frame per tensor in the order
/// in which the header names them.
using Frames = std::vector<SharedBytes>;

/// Encodes `message`. Tensor frames share the message's bytes; only the header is copied. Does not enforce WireLimits:
/// the receiver does.
/// @pre every tensor's bytes are exactly those of its shape and dtype (checked).
Frames encode(const Message& message);

/// Decodes a message of an untrusted peer. The tensors of the result share the frames' bytes at whatever alignment the
/// frames have; the header is copied.
///
/// Beyond the FlatBuffers structure it guarantees each message's fields() and settle()
/// (common/wire/messages/messages.h): ranges, counts, enumerators, ranks, and consistency between fields. Every tensor
/// has exactly the bytes of its shape and dtype, and every frame belongs to a tensor.
///
/// It does not know the handshake: the receiver checks that a token fits the vocabulary, and a shape the model.
/// RequestMetrics are for people: only their counts per position are bounded. Strings are printable UTF-8: other bytes
/// become '?'.
///
/// @return kVersionMismatch for another protocol version (checked before all that may differ
///   between versions), kOutOfRange for a frame or count beyond `limits`, kMalformed for everything
///   else. Never throws (but for memory), never aborts, whatever the bytes. O(bytes of the header).
/// @param about  receives the number of the message's session, if that can be read
Result<Message> decode(std::span<const SharedBytes> frames, const WireLimits& limits = {}, SessionId* about = nullptr);

}  // namespace outrider
