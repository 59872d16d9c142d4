#pragma once

#include "common/protocol/messages.h"

namespace outrider {

/// Whether rows are what these facts promise: one entry per donor, its shape and type, and no gap that
/// a draft could see (a sliding donor may leave out what lies before its window); and every value finite.
Result<void> check_rows(const PairFacts& facts, const KvRows& kv);

/// Whether a hidden row, or the state of drafts that nobody verified, is what a drafter with these facts can go on
/// from.
Result<void> check_hidden(const PairFacts& facts, const WireTensor& row);

/// End of the donor rows that one message carries when a drafter needs [from, committed): all of them
/// if they are few, else a piece of rows_max. The last piece is never shorter than `tail` rows: it must
/// hold the whole sliding window, which the verifier's rings no longer have for the earlier pieces.
Position piece_end(Position from, Position committed, Position rows_max, Position tail);

/// First position of donor rows worth sending when a drafter needs [from, to).
Position first_useful_row(const DonorFacts& donor, Position from, Position to);

}  // namespace outrider
