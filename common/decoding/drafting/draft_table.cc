#include "common/decoding/drafting/draft_table.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include <fmt/format.h>

#include "common/base/check.h"
#include "common/base/random.h"

namespace outrider {
namespace {

constexpr std::uint64_t kMagic = 0x454c424154'444f;  // "ODTABLE"
constexpr std::uint32_t kVersion = 1;

/// Returns the hash of the last `order` tokens.
std::uint64_t context_of(std::span<const TokenId> tokens, int order) {
  std::uint64_t hash = static_cast<std::uint64_t>(order);
  for (const TokenId token : tokens.last(static_cast<std::size_t>(order)))
    hash = mix64(hash * 0x9e3779b97f4a7c15ULL + static_cast<std::uint64_t>(token) + 1);
  return hash;
}

}  // namespace

Result<DraftTable> DraftTable::of(std::span<const std::byte> file) {
  const auto malformed = [](std::string why) { return Error{Errc::kMalformed, std::move(why)}; };
  Header header;
  if (file.size() < sizeof(header))
    return malformed(fmt::format("{} bytes, a draft table has at least {}", file.size(), sizeof(header)));
  std::memcpy(&header, file.data(), sizeof(header));
  if (header.magic != kMagic) return malformed("not a draft table (`outrider bake-table` makes one)");
  if (header.version != kVersion)
    return malformed(fmt::format("a draft table of version {}, wanted {}", header.version, kVersion));
  if (header.order < kTableOrderMin || header.order > kTableOrderMax)
    return malformed(
        fmt::format("contexts of {} tokens, wanted {} to {}", header.order, kTableOrderMin, kTableOrderMax));
  const std::uint64_t fitting = (file.size() - sizeof(header)) / sizeof(Slot);
  if (!std::has_single_bit(header.slots) || header.slots != fitting ||
      file.size() != sizeof(header) + fitting * sizeof(Slot))
    return malformed(
        fmt::format("a draft table of {} slots in {} bytes: cut short, or damaged", header.slots, file.size()));
  return DraftTable(header, file.data() + sizeof(header));
}

std::optional<DraftTable::Slot> DraftTable::find(std::uint64_t context) const {
  for (std::uint64_t probe = 0; probe < kProbesMax; ++probe) {
    Slot slot;
    std::memcpy(&slot, slots_ + ((context + probe) & (header_.slots - 1)) * sizeof(Slot), sizeof(Slot));
    if (slot.total == 0) break;
    if (slot.context == context) return slot;
  }
  return std::nullopt;
}

std::vector<TokenId> DraftTable::draft(std::span<const TokenId> history, std::size_t length,
                                       std::int32_t vocab_size) const {
  const std::size_t known = std::min<std::size_t>(history.size(), header_.order);
  std::vector<TokenId> tokens(history.end() - static_cast<std::ptrdiff_t>(known), history.end());
  while (tokens.size() < known + length) {
    std::optional<Slot> slot;
    for (int order = static_cast<int>(std::min<std::size_t>(tokens.size(), header_.order));
         order >= kTableOrderMin && !slot; --order)
      slot = find(context_of(tokens, order));
    if (!slot || 2 * slot->count < slot->total || slot->token < 0 || slot->token >= vocab_size) break;
    tokens.push_back(slot->token);
  }
  tokens.erase(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(known));
  return tokens;
}

void DraftTableCounts::add(std::span<const TokenId> tokens, std::size_t first) {
  for (std::size_t i = first; i < tokens.size(); ++i) {
    const int most = static_cast<int>(std::min<std::size_t>(i, static_cast<std::size_t>(order_)));
    for (int order = kTableOrderMin; order <= most; ++order)
      ++followers_[context_of(tokens.first(i), order)][tokens[i]];
  }
}

std::string DraftTableCounts::file(std::uint64_t fingerprint) const {
  CHECK(!followers_.empty() && order_ >= kTableOrderMin && order_ <= kTableOrderMax, "{} contexts, order {}",
        followers_.size(), order_);
  struct Counted {
    std::uint64_t total;
    DraftTable::Slot slot;
  };
  std::vector<Counted> all;
  for (const auto& [context, tokens] : followers_) {
    std::uint64_t total = 0;
    const auto* best = &*tokens.begin();  // the lowest id among equals
    for (const auto& entry : tokens) {
      total += entry.second;
      if (entry.second > best->second) best = &entry;
    }
    const int shift = std::max(0, static_cast<int>(std::bit_width(total)) - 16);
    all.push_back({total,
                   {.context = context,
                    .token = best->first,
                    .count = static_cast<std::uint16_t>(best->second >> shift),
                    .total = static_cast<std::uint16_t>(total >> shift)}});
  }
  std::ranges::sort(all, [](const Counted& a, const Counted& b) {
    return a.total != b.total ? a.total > b.total : a.slot.context < b.slot.context;
  });
  const std::uint64_t slots = std::bit_ceil(2 * std::uint64_t{all.size()});
  std::vector<DraftTable::Slot> table(slots);
  for (const Counted& one : all) {
    for (std::uint64_t probe = 0; probe < DraftTable::kProbesMax; ++probe) {
      DraftTable::Slot& place = table[(one.slot.context + probe) & (slots - 1)];
      if (place.total > 0) continue;
      place = one.slot;
      break;
    }
  }
  const DraftTable::Header header{.magic = kMagic,
                                  .version = kVersion,
                                  .order = static_cast<std::uint32_t>(order_),
                                  .fingerprint = fingerprint,
                                  .slots = slots};
  std::string bytes(sizeof(header) + table.size() * sizeof(DraftTable::Slot), '\0');
  std::memcpy(bytes.data(), &header, sizeof(header));
  std::memcpy(bytes.data() + sizeof(header), table.data(), table.size() * sizeof(DraftTable::Slot));
  return bytes;
}

}  // namespace outrider
