#pragma once

#include <span>
#include <vector>

#include "common/protocol/messages.h"

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
/// Beyond the FlatBuffers structure this promises the receiver:
/// - token ids, counts, positions and durations are not negative; positions are at most tokens_max;
/// - every enum value is one that this build knows;
/// - hidden rows have rank 1; K and V have rank 3 and agree in shape and dtype;
/// - every tensor has exactly the bytes of its shape and dtype;
/// - KvRows has from <= to, and donors exactly when it is not empty; every donor has from <= first
///   and first + rows == to;
/// - Prefill and Verify hold at least one token; no draft, candidate list or accepted count exceeds
///   draft_length_max.
///
/// - sampling's numbers are finite; its lists and stop_ids hold at most kSamplingListMax entries; the rest is
/// check_sampling()'s.
/// - a distribution has 1 to kDraftTopK ids in ascending order, weights from 0 to 1, and not all 0.
///
/// It does not know the handshake: whether a token fits the vocabulary, or a shape the model, is
/// the receiver's to check. RequestMetrics are for people: only their counts per position are
/// bounded. Strings are any bytes.
///
/// @return kVersionMismatch for another protocol version (checked before all that may differ
///   between versions), kOutOfRange for a frame or count beyond `limits`, kMalformed for everything
///   else. Never throws (but for memory), never aborts, whatever the bytes. O(bytes of the header).
Result<Message> decode(std::span<const SharedBytes> frames, const WireLimits& limits = {});

}  // namespace outrider
