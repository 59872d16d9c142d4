#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/base/result.h"

namespace outrider {

/// The tree of a round's rows: row 0 is the last emitted token, rows 1 to `drafts` are drafts. They are in depth-first
/// order: each right before all of its descendants, so that depths alone define the tree. A row's parent is the last
/// earlier row of the depth above, and its position in the sequence is row 0's plus its depth.
class TokenTree {
 public:
  /// @param depths  one per draft, at least 1; empty: a chain. Outlives this object
  TokenTree(std::int64_t drafts, std::span<const std::int32_t> depths) : drafts_(drafts), depths_(depths) {}

  /// Checks that the depths form a tree: kMalformed has the impossible depth.
  Result<void> check() const {
    const auto wrong = [](std::string what) { return Error{Errc::kMalformed, std::move(what)}; };
    if (depths_.empty()) return {};
    if (std::ssize(depths_) != drafts_)
      return wrong(fmt::format("{} depths of {} drafts, wanted as many or none", depths_.size(), drafts_));
    for (std::int64_t row = 1; row <= drafts_; ++row) {
      if (depth(row) < 1 || depth(row) > depth(row - 1) + 1)
        return wrong(fmt::format("depth {} of draft {}, wanted 1 to {}", depth(row), row, depth(row - 1) + 1));
    }
    return {};
  }

  std::int64_t rows() const { return drafts_ + 1; }
  std::int32_t depth(std::int64_t row) const {
    if (row == 0 || depths_.empty()) return static_cast<std::int32_t>(row);
    return depths_[static_cast<std::size_t>(row) - 1];
  }
  /// Depth of the deepest draft: the most that a round can keep.
  std::int32_t height() const {
    if (depths_.empty()) return static_cast<std::int32_t>(drafts_);
    return *std::ranges::max_element(depths_);
  }
  /// Returns the children of a row, in order.
  std::vector<std::int64_t> children(std::int64_t row) const {
    std::vector<std::int64_t> found;
    for (std::int64_t other = row + 1; other < rows() && depth(other) > depth(row); ++other)
      if (depth(other) == depth(row) + 1) found.push_back(other);
    return found;
  }
  /// Returns the rows from row 0 to `row`, one per depth.
  std::vector<std::int64_t> path(std::int64_t row) const {
    std::vector<std::int64_t> found(static_cast<std::size_t>(depth(row)) + 1);
    for (std::int64_t wanted = depth(row); wanted >= 0; --row)
      if (depth(row) == wanted) found[static_cast<std::size_t>(wanted--)] = row;
    return found;
  }

 private:
  std::int64_t drafts_;
  std::span<const std::int32_t> depths_;
};

}  // namespace outrider
