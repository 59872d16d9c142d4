#include "common/protocol/donor_rows.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace outrider {

Position piece_end(Position from, Position committed, Position rows_max, Position tail) {
  return committed <= from + rows_max + tail ? committed : from + rows_max;
}

Position first_useful_row(const DonorFacts& donor, Position from, Position to) {
  if (!donor.sliding) return from;
  return std::max(from, to - drafter_window(donor.sliding_window));
}

Result<void> check_rows(const PairFacts& facts, const KvRows& kv) {
  if (kv.empty()) return {};
  if (kv.donors.size() != facts.donors.size()) {
    return Error{Errc::kMismatch,
                 fmt::format("K/V rows of {} donors, wanted {}", kv.donors.size(), facts.donors.size())};
  }
  for (std::size_t i = 0; i < kv.donors.size(); ++i) {
    const DonorFacts& wanted = facts.donors[i];
    const DonorDelta& seen = kv.donors[i];
    for (const WireTensor* tensor : {&seen.key, &seen.value}) {
      const std::vector<std::int64_t> shape = {kv.to - seen.first, wanted.num_key_value_heads, wanted.head_dim};
      if (tensor->shape != shape || tensor->dtype != facts.kv_dtype) {
        return Error{Errc::kMismatch,
                     fmt::format("K/V rows of donor {} are {} [{}], wanted {} [{}]", i, to_string(tensor->dtype),
                                 fmt::join(tensor->shape, ", "), to_string(facts.kv_dtype), fmt::join(shape, ", "))};
      }
    }
    const Position latest_first = first_useful_row(wanted, kv.from, kv.to);
    if (seen.first > latest_first) {
      return Error{Errc::kMismatch,
                   fmt::format("K/V rows of donor {} start at {}, wanted {} or less", i, seen.first, latest_first)};
    }
  }
  return {};
}

}  // namespace outrider
