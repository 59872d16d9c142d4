#pragma once

#include <vector>

#include "common/base/token_tree.h"
#include "common/decoding/drafting/draft_policy.h"
#include "common/wire/messages/messages.h"

namespace outrider {

/// The drafts of a round: the union of what its sources say, as a token tree (TokenTree). The same token after the same
/// path is one draft, of whoever said it first.
struct RoundDrafts {
  std::vector<TokenId> tokens = {};
  std::vector<DraftSource> sources = {};  ///< of each
  /// What each was drawn from, as its drafter sent it; of one that was not drawn all on itself. Empty: none was drawn.
  std::vector<Distribution> q = {};
  std::vector<std::int32_t> depths = {};  ///< of each; empty: a chain

  bool empty() const { return tokens.empty(); }
  std::int64_t size() const { return std::ssize(tokens); }
  TokenTree tree() const { return {size(), depths}; }
  /// The drafts on the way to a row, it included, and who says them.
  std::vector<TokenId> path(std::int64_t row) const;
  std::vector<DraftSource> sources_of(std::int64_t row) const;
  /// The row in which first choices end: 0 without drafts.
  std::int64_t first_end() const;
  /// First choices on the way to a row, from the first on.
  int held_first(std::int64_t row) const;

  /// Adds a chain or a tree whose first drafts follow `row`, as the last choices of their places. Those that find no
  /// room are left out, with what grows from them.
  /// @param drafts  a sound tree, with as many q as tokens or none. @param most  that there may then be
  void add(std::int64_t row, const Candidates& drafts, DraftSource source, std::int64_t most);

 private:
  template <class T>
  std::vector<T> along(const std::vector<T>& each, std::int64_t row) const;
  std::int64_t find_child(std::int64_t row, TokenId token) const;
  std::int64_t insert_child(std::int64_t row, TokenId token, DraftSource source, const Distribution* drawn_from);
};

}  // namespace outrider
