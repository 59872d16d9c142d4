#pragma once

#include <vector>

#include "common/base/token_tree.h"
#include "common/decoding/drafting/draft_policy.h"
#include "common/wire/messages/messages.h"

namespace outrider {

/// Checks a drafter's drafts: at most `most`, each a token of the vocabulary, with one q each or none, as a chain or a
/// sound tree.
Result<void> check_candidates(const Candidates& drafts, std::int64_t most, std::int32_t vocab_size);

/// The drafts of a round: the union of its sources' drafts, as a token tree (TokenTree). Equal tokens after equal paths
/// are one draft, of the first source.
struct RoundDrafts {
  std::vector<TokenId> tokens = {};
  std::vector<DraftSource> sources = {};  ///< one per draft
  /// Distribution of each draft, from its drafter. All weight is on a draft if it was not drawn. Empty: none was drawn.
  std::vector<Distribution> q = {};
  std::vector<std::int32_t> depths = {};  ///< one per draft; empty: a chain

  bool empty() const { return tokens.empty(); }
  std::int64_t size() const { return std::ssize(tokens); }
  TokenTree tree() const { return {size(), depths}; }
  /// Returns the drafts on the path to a row, included, and their sources.
  std::vector<TokenId> path(std::int64_t row) const;
  std::vector<DraftSource> sources_of(std::int64_t row) const;
  /// Returns the row at the end of the first choices: 0 without drafts.
  std::int64_t first_end() const;
  /// Returns the number of first choices on the path to a row.
  int held_first(std::int64_t row) const;

  /// Adds a chain or a tree whose first drafts follow `row`, as the last choices of their positions. Drafts without
  /// room are omitted with their descendants.
  /// @param drafts  a sound tree, with one q per token or none
  /// @param most  limit of the total
  void add(std::int64_t row, const Candidates& drafts, DraftSource source, std::int64_t most);

 private:
  template <class T>
  std::vector<T> along(const std::vector<T>& each, std::int64_t row) const;
  std::int64_t find_child(std::int64_t row, TokenId token) const;
  std::int64_t insert_child(std::int64_t row, TokenId token, DraftSource source, const Distribution* drawn_from);
};

}  // namespace outrider
