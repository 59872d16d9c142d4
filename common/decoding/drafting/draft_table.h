#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/base/ids.h"
#include "common/base/result.h"

namespace outrider {

/// Fewest and most tokens of a table's contexts.
inline constexpr int kTableOrderMin = 2, kTableOrderMax = 8;
inline constexpr int kTableOrder = 4;  ///< the best on nano's own answers (docs/lab/tables.md)

/// Drafts the tokens that most often followed the last tokens in a model's own answers: an n-gram model with back-off
/// (the longest known context decides), in a memory-mapped file. Thread-safe.
///
/// The file, little-endian: a header (struct Header), then `slots` of 16 bytes, a hash table with linear probing. A
/// corrupt slot only causes wrong drafts: opening checks the header alone, and takes no time.
class DraftTable {
 public:
  /// @param file  outlives this object and its copies
  /// @return kMalformed, without the file's name, for bytes that are no table
  static Result<DraftTable> of(std::span<const std::byte> file);

  /// Fingerprint of the model whose answers were counted (Checkpoint::fingerprint).
  std::uint64_t fingerprint() const { return header_.fingerprint; }
  /// Upper bound of known contexts.
  std::uint64_t slots() const { return header_.slots; }

  /// Returns drafts, as long as each followed its context at least half of the time; all below `vocab_size`. O(order)
  /// per draft. @param history  prompt and answer so far @param length  most tokens wanted
  std::vector<TokenId> draft(std::span<const TokenId> history, std::size_t length, std::int32_t vocab_size) const;

 private:
  friend class DraftTableCounts;
  struct Header {
    std::uint64_t magic = 0;
    std::uint32_t version = 0, order = 0;
    std::uint64_t fingerprint = 0, slots = 0;
  };
  /// A context and its most frequent next token; empty: `total` is 0.
  struct Slot {
    std::uint64_t context = 0;
    TokenId token = 0;
    std::uint16_t count = 0, total = 0;  ///< halved until they fit
  };
  static_assert(sizeof(Header) == 32 && sizeof(Slot) == 16);

  /// Longest distance between a context and the slot that its hash selects.
  static constexpr std::uint64_t kProbesMax = 32;

  DraftTable(const Header& header, const std::byte* slots) : header_(header), slots_(slots) {}
  std::optional<Slot> find(std::uint64_t context) const;

  Header header_;
  const std::byte* slots_;
};

/// Counts n-grams of answers, and writes a table file.
class DraftTableCounts {
 public:
  /// @param order  tokens of the longest contexts, kTableOrderMin to kTableOrderMax
  explicit DraftTableCounts(int order) : order_(order) {}

  /// Counts each one of `tokens` from `first` on as a successor of the tokens before it.
  void add(std::span<const TokenId> tokens, std::size_t first);
  std::size_t contexts() const { return followers_.size(); }
  /// Returns the file; equal counts give equal bytes. Contexts that find no slot (where a hundred or more collide) are
  /// dropped, the rarest first. @pre something was counted
  std::string file(std::uint64_t fingerprint) const;

 private:
  int order_;
  std::unordered_map<std::uint64_t, std::map<TokenId, std::uint64_t>> followers_;
};

}  // namespace outrider
