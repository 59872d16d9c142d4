#pragma once

#include "common/wire/messages/messages.h"

namespace outrider {

/// The only donor of a block drafter: the output rows of these target layers, counted from 0, concatenated. `key`
/// carries the first half of a position's row, `value` the second. `layer` is a hash of the list, so that a handshake
/// fails when the layers or their order differ.
DonorFacts hidden_rows_donor(std::span<const int> layers, std::int64_t hidden_size);
/// Returns true for a block drafter's facts; an assistant's have two donors.
inline bool takes_hidden_rows(const PairFacts& facts) { return facts.donors.size() == 1; }

/// Most rows of a sequence that a drafter with K/V of its own computes in one catch-up pass. It reads its socket
/// between two passes, so that a request waits for one pass at most. A drafter that is further behind does not draft in
/// that round.
inline constexpr std::int64_t kCatchUpRows = 32;

/// Checks rows against the facts: one entry per donor, with its shape and its type (or a WireForm's), all values
/// finite, no gap that a draft could see (a sliding donor may leave out positions before its window), and tokens beside
/// them, if any, of the vocabulary.
/// @param needs  with kTokens, the rows must be tokens of the vocabulary instead
Result<void> check_rows(const PairFacts& facts, const KvRows& kv, DraftInput needs = DraftInput::kTargetRows);

/// Memory of the donors' rows.
std::int64_t bytes_of(const KvRows& kv);

/// Returns the rows from position `from` on, in the same memory.
/// @pre check_rows() accepts `kv`, and `from` is one of its positions
KvRows rows_from(const KvRows& kv, Position from);

/// Checks that a drafter with these facts can continue from `row`, a hidden row.
Result<void> check_hidden(const PairFacts& facts, const WireTensor& row);

/// Checks that a medium is finite soft tokens, encoded for a model with these facts.
/// @return kMismatch, or kMalformed with a number that is not finite
Result<void> check_encoded(const PairFacts& facts, const WireMedium& medium);

/// @return kInvalidArgument for a word that to_string() does not return
Result<WireForm> parse_wire_form(const std::string& name);

/// Returns the type of rows in this form; `exact` is the model's own.
/// @param elements  length of the last axis; a row that is not a multiple of a block keeps the exact type
DType wire_dtype(WireForm form, DType exact, std::int64_t elements);

/// End of the donor rows that one message carries when a drafter needs [from, committed): all of them
/// if they are few, else a piece of rows_max. The last piece is never shorter than `tail` rows: it must
/// hold the whole sliding window, which the verifier's rings no longer have for the earlier pieces.
Position piece_end(Position from, Position committed, Position rows_max, Position tail);

/// First position of donor rows worth sending when a drafter needs [from, to).
Position first_useful_row(const DonorFacts& donor, Position from, Position to);

}  // namespace outrider
