#include "common/protocol/facts.h"

#include <algorithm>

namespace outrider {
namespace {

std::string describe(const DonorFacts& d) {
  return fmt::format("layer {} ({}, {} K/V heads of {}, window {})", d.layer, d.sliding ? "sliding" : "full",
                     d.num_key_value_heads, d.head_dim, d.sliding_window);
}

}  // namespace

std::optional<std::string> mismatch(const PairFacts& verifier, const PairFacts& drafter) {
  const auto differ = [](const char* what, const auto& v, const auto& d) {
    return fmt::format("{}: verifier has {}, drafter has {}", what, v, d);
  };
  const auto hex = [](std::uint64_t x) { return fmt::format("{:016x}", x); };
  if (verifier.hidden_size != drafter.hidden_size)
    return differ("hidden_size", verifier.hidden_size, drafter.hidden_size);
  if (verifier.vocab_size != drafter.vocab_size) return differ("vocab_size", verifier.vocab_size, drafter.vocab_size);
  if (verifier.kv_dtype != drafter.kv_dtype)
    return differ("K/V type", to_string(verifier.kv_dtype), to_string(drafter.kv_dtype));
  if (verifier.hidden_dtype != drafter.hidden_dtype)
    return differ("hidden type", to_string(verifier.hidden_dtype), to_string(drafter.hidden_dtype));
  if (verifier.donors.size() != drafter.donors.size())
    return differ("donor layers", verifier.donors.size(), drafter.donors.size());
  for (std::size_t i = 0; i < verifier.donors.size(); ++i) {
    if (verifier.donors[i] == drafter.donors[i]) continue;
    return differ("donor", describe(verifier.donors[i]), describe(drafter.donors[i]));
  }
  if (verifier.embedding_fingerprint != drafter.embedding_fingerprint)
    return differ("target embedding fingerprint", hex(verifier.embedding_fingerprint),
                  hex(drafter.embedding_fingerprint));
  const bool both_known = verifier.backbone_fingerprint != 0 && drafter.backbone_fingerprint != 0;
  if (both_known && verifier.backbone_fingerprint != drafter.backbone_fingerprint)
    return differ("backbone fingerprint", hex(verifier.backbone_fingerprint), hex(drafter.backbone_fingerprint));
  return std::nullopt;
}

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
