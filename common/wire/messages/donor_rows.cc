#include "common/wire/messages/donor_rows.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/names.h"

namespace outrider {
namespace {

bool is_rounded(DType dtype) { return dtype == DType::kQ8_0 || dtype == DType::kQ4_0; }

/// Returns true when an element is infinite or NaN: all bits of `exponent` are set.
template <typename Bits>
bool has_exponent(std::span<const std::byte> bytes, Bits exponent) {
  bool found = false;
  for (std::size_t at = 0; at + sizeof(Bits) <= bytes.size(); at += sizeof(Bits)) {
    Bits bits;
    std::memcpy(&bits, bytes.data() + at, sizeof bits);
    found |= (bits & exponent) == exponent;
  }
  return found;
}

/// A block is finite when its scale is.
bool is_finite(const WireTensor& tensor) {
  std::span<const std::byte> bytes = tensor.data.bytes();
  if (tensor.dtype == DType::kF32) return !has_exponent<std::uint32_t>(bytes, 0x7f800000);
  if (tensor.dtype == DType::kBf16) return !has_exponent<std::uint16_t>(bytes, 0x7f80);
  if (!is_rounded(tensor.dtype)) return true;
  const std::size_t block = stored_bytes(tensor.dtype, block_elements(tensor.dtype));
  for (; !bytes.empty(); bytes = bytes.subspan(block))
    if (has_exponent<std::uint16_t>(bytes.first(sizeof(std::uint16_t)), 0x7c00)) return false;
  return true;
}

}  // namespace

Result<WireForm> parse_wire_form(const std::string& name) {
  constexpr WireForm kForms[] = {WireForm::kExact, WireForm::kInt8, WireForm::kInt4, WireForm::kAuto};
  for (const WireForm form : kForms)
    if (name == to_string(form)) return form;
  return Error(Errc::kInvalidArgument, "wire '{}', wanted {}", name, names_of(kForms));
}

DType wire_dtype(WireForm form, DType exact, std::int64_t elements) {
  if (form == WireForm::kExact) return exact;
  const DType rounded = form == WireForm::kInt8 ? DType::kQ8_0 : DType::kQ4_0;
  return elements % static_cast<std::int64_t>(block_elements(rounded)) == 0 ? rounded : exact;
}

Position piece_end(Position from, Position committed, Position rows_max, Position tail) {
  return committed <= from + rows_max + tail ? committed : from + rows_max;
}

Position first_useful_row(const DonorFacts& donor, Position from, Position to) {
  if (!donor.sliding) return from;
  return std::max(from, to - drafter_window(donor.sliding_window));
}

DonorFacts hidden_rows_donor(std::span<const int> layers, std::int64_t hidden_size) {
  std::uint32_t id = 2166136261;  // FNV-1a
  for (const int layer : layers) id = (id ^ static_cast<std::uint32_t>(layer)) * 16777619;
  return {.layer = static_cast<std::int32_t>(id >> 1),
          .num_key_value_heads = static_cast<std::int32_t>(layers.size()),
          .head_dim = static_cast<std::int32_t>(hidden_size / 2)};
}

Result<void> check_rows(const PairFacts& facts, const KvRows& kv, DraftInput needs) {
  if (kv.empty()) return {};
  if (needs == DraftInput::kTokens || !kv.tokens.empty()) {
    const TokenId highest = kv.tokens.empty() ? facts.vocab_size : std::ranges::max(kv.tokens);
    if (highest >= facts.vocab_size) {
      return Error(Errc::kMismatch, "rows with {} tokens, the highest {}, wanted {} below {}", kv.tokens.size(),
                   highest, kv.to - kv.from, facts.vocab_size);
    }
    if (needs == DraftInput::kTokens) return {};
  }
  if (kv.donors.size() != facts.donors.size())
    return Error(Errc::kMismatch, "K/V rows of {} donors, wanted {}", kv.donors.size(), facts.donors.size());
  for (std::size_t i = 0; i < kv.donors.size(); ++i) {
    const DonorFacts& wanted = facts.donors[i];
    const DonorDelta& seen = kv.donors[i];
    for (const WireTensor* tensor : {&seen.key, &seen.value}) {
      const std::vector<std::int64_t> shape = {kv.to - seen.first, wanted.num_key_value_heads, wanted.head_dim};
      if (tensor->shape != shape || (tensor->dtype != facts.kv_dtype && !is_rounded(tensor->dtype))) {
        return Error(Errc::kMismatch, "K/V rows of donor {} are {} [{}], wanted {}, Q8_0 or Q4_0 [{}]", i,
                     to_string(tensor->dtype), fmt::join(tensor->shape, ", "), to_string(facts.kv_dtype),
                     fmt::join(shape, ", "));
      }
      if (!is_finite(*tensor)) {
        return Error(Errc::kMalformed, "K/V rows {} to {} of donor {} hold a number that is not finite", seen.first,
                     kv.to, i);
      }
    }
    const Position latest_first = first_useful_row(wanted, kv.from, kv.to);
    if (seen.first > latest_first)
      return Error(Errc::kMismatch, "K/V rows of donor {} start at {}, wanted {} or less", i, seen.first, latest_first);
  }
  return {};
}

std::int64_t bytes_of(const KvRows& kv) {
  std::size_t bytes = 0;
  for (const DonorDelta& donor : kv.donors) bytes += donor.key.data.bytes().size() + donor.value.data.bytes().size();
  return static_cast<std::int64_t>(bytes);
}

KvRows rows_from(const KvRows& kv, Position from) {
  KvRows rows = kv;
  rows.from = from;
  if (!rows.tokens.empty()) rows.tokens.erase(rows.tokens.begin(), rows.tokens.begin() + (from - kv.from));
  for (DonorDelta& donor : rows.donors) {
    const Position skipped = std::max<Position>(from - donor.first, 0);
    if (skipped == 0) continue;
    donor.first += skipped;
    for (WireTensor* tensor : {&donor.key, &donor.value}) {
      const std::span<const std::byte> bytes = tensor->data.bytes();
      const std::size_t row_bytes = bytes.size() / static_cast<std::size_t>(tensor->shape[0]);
      tensor->data = SharedBytes(std::make_shared<SharedBytes>(tensor->data),
                                 bytes.subspan(static_cast<std::size_t>(skipped) * row_bytes));
      tensor->shape[0] -= skipped;
    }
  }
  return rows;
}

Result<void> check_encoded(const PairFacts& facts, const WireMedium& medium) {
  const std::vector<std::int64_t>& shape = medium.content.shape;
  if (!medium.is_encoded() || shape[0] < 1 || shape[1] != facts.hidden_size) {
    return Error(Errc::kMismatch, "soft tokens {} [{}], wanted F32 [1 or more, {}]", to_string(medium.content.dtype),
                 fmt::join(shape, ", "), facts.hidden_size);
  }
  if (!is_finite(medium.content)) return Error{Errc::kMalformed, "soft tokens hold a number that is not finite"};
  return {};
}

Result<void> check_hidden(const PairFacts& facts, const WireTensor& row) {
  const bool fits = (row.dtype == facts.hidden_dtype || row.dtype == DType::kF32 || is_rounded(row.dtype)) &&
                    row.shape == std::vector<std::int64_t>{facts.hidden_size};
  if (!fits) {
    return Error(Errc::kMismatch, "hidden row {} [{}], wanted {}, Q8_0 or Q4_0 [{}]", to_string(row.dtype),
                 fmt::join(row.shape, ", "), to_string(facts.hidden_dtype), facts.hidden_size);
  }
  if (!is_finite(row)) return Error{Errc::kMalformed, "a hidden row holds a number that is not finite"};
  return {};
}

}  // namespace outrider
