#include "coordinator-node/round_drafts.h"

#include <algorithm>
#include <numeric>

#include "coordinator-node/session/sequence.h"

namespace outrider {
namespace {

Distribution all_on(TokenId token) {
  Distribution q;
  q.add(token, 1);
  return q;
}

}  // namespace

Result<void> check_candidates(const Candidates& drafts, std::int64_t most, std::int32_t vocab_size) {
  const std::int64_t count = std::ssize(drafts.tokens);
  if (count > most) return Error(Errc::kMismatch, "{} drafts, wanted at most {}", count, most);
  if (!drafts.q.empty() && std::ssize(drafts.q) != count)
    return Error(Errc::kMismatch, "distributions of {} drafts, wanted {}", drafts.q.size(), count);
  if (const auto beyond = first_beyond(drafts.tokens, vocab_size))
    return Error(Errc::kMismatch, "draft {}, wanted a token id below {}", *beyond, vocab_size);
  return TokenTree(count, drafts.depths).check();
}

template <class T>
std::vector<T> RoundDrafts::along(const std::vector<T>& each, std::int64_t row) const {
  std::vector<T> found;
  for (const std::int64_t on_the_way : tree().path(row))
    if (on_the_way > 0) found.push_back(each[static_cast<std::size_t>(on_the_way) - 1]);
  return found;
}
std::vector<TokenId> RoundDrafts::path(std::int64_t row) const { return along(tokens, row); }
std::vector<DraftSource> RoundDrafts::sources_of(std::int64_t row) const { return along(sources, row); }

std::int64_t RoundDrafts::first_end() const {
  const TokenTree all = tree();
  std::int64_t row = 0;
  while (row + 1 < all.rows() && all.depth(row + 1) == row + 1) ++row;
  return row;
}

int RoundDrafts::held_first(std::int64_t row) const {
  const std::vector<std::int64_t> way = tree().path(row);
  int held = 0;
  while (held + 1 < std::ssize(way) && way[static_cast<std::size_t>(held) + 1] == held + 1) ++held;
  return held;
}

std::int64_t RoundDrafts::find_child(std::int64_t row, TokenId token) const {
  for (const std::int64_t child : tree().children(row))
    if (tokens[static_cast<std::size_t>(child) - 1] == token) return child;
  return 0;
}

std::int64_t RoundDrafts::insert_child(std::int64_t row, TokenId token, DraftSource source,
                                       const Distribution* drawn_from) {
  const TokenTree all = tree();
  const std::int32_t depth = all.depth(row) + 1;
  std::int64_t at = row + 1;  // after all descendants of `row`
  while (at < all.rows() && all.depth(at) >= depth) ++at;
  if (depths.empty() && at != depth) {
    depths.resize(tokens.size());
    std::iota(depths.begin(), depths.end(), 1);
  }
  if (q.empty() && drawn_from != nullptr) std::ranges::transform(tokens, std::back_inserter(q), all_on);
  const auto place = static_cast<std::ptrdiff_t>(at) - 1;
  if (!q.empty() || drawn_from != nullptr) q.insert(q.begin() + place, drawn_from ? *drawn_from : all_on(token));
  if (!depths.empty()) depths.insert(depths.begin() + place, depth);
  tokens.insert(tokens.begin() + place, token);
  sources.insert(sources.begin() + place, source);
  return at;
}

void RoundDrafts::add(std::int64_t row, const Candidates& drafts, DraftSource source, std::int64_t most) {
  const TokenTree theirs(std::ssize(drafts.tokens), drafts.depths);
  std::vector<std::int64_t> ours = {row};  // by depth, the rows on the path to the last of theirs
  for (std::size_t i = 0; i < drafts.tokens.size(); ++i) {
    const auto depth = static_cast<std::size_t>(theirs.depth(static_cast<std::int64_t>(i) + 1));
    if (ours.size() < depth) continue;  // its parent was left out
    ours.resize(depth);
    std::int64_t found = find_child(ours.back(), drafts.tokens[i]);
    if (found == 0 && size() < most)
      found = insert_child(ours.back(), drafts.tokens[i], source, drafts.q.empty() ? nullptr : &drafts.q[i]);
    if (found > 0) ours.push_back(found);
  }
}

}  // namespace outrider
