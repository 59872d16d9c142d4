#pragma once

#include "common/wire/messages/messages.h"

namespace outrider {

/// What a verifier sends to a block drafter, and nothing else: the output rows of these layers of the target, counted
/// from 0, one after the other. The first half of a position's is in `key`, the second in `value`. Its `layer` is a
/// number made of the list, so that a handshake tells other layers, or another order.
DonorFacts hidden_rows_donor(std::span<const int> layers, std::int64_t hidden_size);
/// Whether that is the donor: an assistant has two.
inline bool takes_hidden_rows(const PairFacts& facts) { return facts.donors.size() == 1; }

/// Most positions of a sequence of which a drafter with K/V of its own computes K/V in one pass: it reads its socket
/// between two passes, and who asks waits for the one under way. A drafter that is sent no more drafts in that round.
inline constexpr std::int64_t kCatchUpRows = 32;

/// Whether rows are what these facts promise: one entry per donor, its shape, its type or a WireForm's, and no gap that
/// a draft could see (a sliding donor may leave out what lies before its window); and every value finite.
/// @param needs  kTokens: they are instead tokens of the vocabulary
Result<void> check_rows(const PairFacts& facts, const KvRows& kv, DraftInput needs = DraftInput::kTargetRows);

/// The rows from position `from` on, in the same memory. @pre check_rows() likes them, and `from` is a position of
/// theirs
KvRows rows_from(const KvRows& kv, Position from);

/// Whether a hidden row, or the state of drafts that nobody verified, is what a drafter with these facts can go on
/// from.
Result<void> check_hidden(const PairFacts& facts, const WireTensor& row);

/// kInvalidArgument for another word than to_string() has.
Result<WireForm> parse_wire_form(const std::string& name);

/// The type of rows in this form, of a model whose own is `exact`. @param elements  of the last axis: what is no
/// multiple of a block's elements travels as it is.
DType wire_dtype(WireForm form, DType exact, std::int64_t elements);

/// End of the donor rows that one message carries when a drafter needs [from, committed): all of them
/// if they are few, else a piece of rows_max. The last piece is never shorter than `tail` rows: it must
/// hold the whole sliding window, which the verifier's rings no longer have for the earlier pieces.
Position piece_end(Position from, Position committed, Position rows_max, Position tail);

/// First position of donor rows worth sending when a drafter needs [from, to).
Position first_useful_row(const DonorFacts& donor, Position from, Position to);

}  // namespace outrider
