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

/// The fewest and the most tokens that a table's contexts have.
inline constexpr int kTableOrderMin = 2, kTableOrderMax = 8;
inline constexpr int kTableOrder = 4;  ///< what is best on nano's own answers (docs/lab/tables.md)

/// Drafts by what a model's own answers went on with after their last tokens: an n-gram model with back-off (the
/// longest context that is known decides), in a file that is used where it is mapped. Thread-safe.
///
/// The file, little-endian: a header (struct Header), then `slots` of 16 bytes, a hash table with linear probing. What
/// is wrong in a slot is a wrong draft: only the header is checked, so that opening one takes no time.
class DraftTable {
 public:
  /// @param file  outlives this object and its copies
  /// @return kMalformed, without the file's name, for bytes that are no table
  static Result<DraftTable> of(std::span<const std::byte> file);

  /// Of the weights of the model whose answers were counted (Checkpoint::fingerprint).
  std::uint64_t fingerprint() const { return header_.fingerprint; }
  /// Contexts that it knows, at most.
  std::uint64_t slots() const { return header_.slots; }

  /// @param history  prompt and answer so far. @param length  most tokens wanted.
  /// @return drafts, as long as each is what followed its context at least half of the time; all below `vocab_size`.
  /// O(order) for each.
  std::vector<TokenId> draft(std::span<const TokenId> history, std::size_t length, std::int32_t vocab_size) const;

 private:
  friend class DraftTableCounts;
  struct Header {
    std::uint64_t magic = 0;
    std::uint32_t version = 0, order = 0;
    std::uint64_t fingerprint = 0, slots = 0;
  };
  /// A context and what followed it most often; none: `total` is 0.
  struct Slot {
    std::uint64_t context = 0;
    TokenId token = 0;
    std::uint16_t count = 0, total = 0;  ///< halved until they fit
  };
  static_assert(sizeof(Header) == 32 && sizeof(Slot) == 16);

  /// No context is further than this behind the slot that its hash names.
  static constexpr std::uint64_t kProbesMax = 32;

  DraftTable(const Header& header, const std::byte* slots) : header_(header), slots_(slots) {}
  std::optional<Slot> find(std::uint64_t context) const;

  Header header_;
  const std::byte* slots_;
};

/// Counts answers, and makes the file of a table of them.
class DraftTableCounts {
 public:
  /// @param order  tokens of the longest contexts, kTableOrderMin to kTableOrderMax
  explicit DraftTableCounts(int order) : order_(order) {}

  /// Each token of `text` from `first` on has followed those before it.
  void add(std::span<const TokenId> text, std::size_t first);
  std::size_t contexts() const { return followers_.size(); }
  /// The same counts give the same bytes. Of contexts that find no place (where a hundred and more meet) the rarest are
  /// left out. @pre something was counted
  std::string file(std::uint64_t fingerprint) const;

 private:
  int order_;
  std::unordered_map<std::uint64_t, std::map<TokenId, std::uint64_t>> followers_;
};

}  // namespace outrider
