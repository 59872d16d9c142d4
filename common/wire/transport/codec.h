#pragma once

#include <span>
#include <vector>

#include "common/wire/messages/messages.h"

namespace outrider {

/// A message on the wire: the header frame (a FlatBuffer, schemas/outrider.fbs), then one frame per
/// tensor in the order in which the header names them.
using Frames = std::vector<SharedBytes>;

/// The wire form of `message`. Tensor frames share the message's bytes; nothing but the header is
/// copied. Does not enforce WireLimits: the receiver does.
/// @pre every tensor's bytes are exactly those of its shape and dtype (checked).
Frames encode(const Message& message);

/// Reads a message that a stranger may have sent. The tensors of the result share the frames' bytes
/// at whatever alignment the frames have; the header is copied.
///
/// Beyond the FlatBuffers structure this promises the receiver what each message's fields() and settle() say
/// (common/wire/messages/messages.h): ranges, counts, enumerators, ranks, and what must fit each other. And
/// every tensor has exactly the bytes of its shape and dtype, and every frame is somebody's.
///
/// It does not know the handshake: whether a token fits the vocabulary, or a shape the model, is
/// the receiver's to check. RequestMetrics are for people: only their counts per position are
/// bounded. Strings are printable UTF-8: what is not became '?'.
///
/// @return kVersionMismatch for another protocol version (checked before all that may differ
///   between versions), kOutOfRange for a frame or count beyond `limits`, kMalformed for everything
///   else. Never throws (but for memory), never aborts, whatever the bytes. O(bytes of the header).
/// @param about  gets the number of the session that the message is about, as far as that can be read
Result<Message> decode(std::span<const SharedBytes> frames, const WireLimits& limits = {}, SessionId* about = nullptr);

}  // namespace outrider
