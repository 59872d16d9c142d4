#include "drafter-node/draft_tree.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "common/base/random.h"
#include "drafter-node/drafter_core.h"

namespace outrider {
std::vector<double> chances_of_draws(std::vector<double> chances) {
  double left = 1, probable = 1;
  for (double& chance : chances) {
    const double share = probable > 0 ? std::min(chance / probable, 1.0) : 0;
    probable -= chance;
    chance = left * (1 + share) / 2;
    left -= chance;
  }
  return chances;
}

std::vector<std::size_t> DraftTree::best() const {
  std::vector<std::size_t> order(nodes_.size() - 1);
  std::iota(order.begin(), order.end(), std::size_t{1});
  std::erase_if(order, [&](std::size_t i) { return nodes_[i].weight < worth_; });
  std::ranges::stable_sort(order, std::greater<>(), [&](std::size_t i) { return nodes_[i].weight; });
  if (order.size() > most_) order.resize(most_);
  return order;
}

std::vector<std::size_t> DraftTree::next() const {
  if (!nodes_[0].grown) return {0};
  const std::vector<std::size_t> order = best();
  std::vector<std::size_t> wanted;
  for (const std::size_t i : order) {
    // Its children weigh at most as much, and so would come after all other nodes.
    const bool too_late = order.size() == most_ && nodes_[i].weight <= nodes_[order.back()].weight;
    if (!nodes_[i].grown && !too_late && wanted.size() < kTreeStepRows) wanted.push_back(i);
  }
  return wanted;
}

void DraftTree::grow(std::size_t parent, std::span<const TokenId> choices, std::span<const double> chances,
                     std::span<const TokenId> stop_ids) {
  nodes_[parent].grown = true;
  const Node from = nodes_[parent];
  for (std::size_t rank = 0; rank < choices.size(); ++rank) {
    const bool first = rank == 0 && from.branch == 0;
    nodes_.push_back({.token = choices[rank],
                      .depth = from.depth + 1,
                      .parent = parent,
                      .weight = from.weight * std::min(chances[rank], 1.0),
                      .branch = first ? 0 : mix64(mix64(from.branch + static_cast<std::uint64_t>(from.depth)) + rank),
                      .grown = std::ranges::find(stop_ids, choices[rank]) != stop_ids.end()});
  }
}

std::vector<TokenId> DraftTree::path(std::size_t i) const {
  std::vector<TokenId> tokens;
  for (; i != 0; i = nodes_[i].parent) tokens.push_back(nodes_[i].token);
  std::ranges::reverse(tokens);
  return tokens;
}

std::vector<std::size_t> DraftTree::finish() const {
  std::vector<std::size_t> kept = best(), ordered;
  std::ranges::sort(kept);  // children of one node stay in the order of their ranks
  const std::function<void(std::size_t)> visit = [&](std::size_t parent) {
    for (const std::size_t i : kept) {
      if (nodes_[i].parent != parent) continue;
      ordered.push_back(i);
      visit(i);
    }
  };
  visit(0);
  return ordered;
}

}  // namespace outrider
