#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/ids.h"

namespace outrider {

/// The chances that choices which are drawn count with, of those of the most probable tokens. A draw is kept more often
/// than it is probable: two distributions that are close mostly draw alike (match), or accept what the other drew
/// (rejection). Each choice is taken to be kept halfway between always and by its share of what is left.
std::vector<double> chances_of_draws(std::vector<double> most_probable);

/// A token tree that grows from the last emitted token: those `most` nodes that are the likeliest to be kept, as far as
/// the drafter's own probabilities say (EAGLE-2, Li et al. 2024, expands and chooses likewise).
///
/// A child's weight is its parent's times the probability of the drafter's r-th most probable token there, the child
/// being its r-th choice. Where choices are drawn (chances_of_draws), it is still the rank that counts and not the
/// token that was drawn: then whether a node is in the tree depends neither on what it holds nor on what grows from it,
/// and the law of what was drawn is that of its distribution (docs/sampling.md).
class DraftTree {
 public:
  struct Node {
    TokenId token = 0;
    std::int32_t depth = 0;
    std::size_t parent = 0;
    double weight = 1;
    std::uint64_t branch = 0;  ///< 0 along first choices, else of this node alone: for noise that no other node has
    bool grown = false;        ///< its children are there, or it has none
  };

  /// @param most  nodes, without the root. @param worth  nodes of a smaller weight are left out.
  DraftTree(TokenId root, std::int64_t most, double worth)
      : most_(static_cast<std::size_t>(most)), worth_(worth), nodes_{{.token = root}} {}

  const Node& node(std::size_t i) const { return nodes_[i]; }
  /// The nodes whose children are wanted next, a step's worth of them; none: the tree is complete.
  std::vector<std::size_t> next() const;
  /// Adds the children of a node, its first choice first. @param chances  of the ranks, never rising.
  /// @param stop_ids  nothing grows from these
  void grow(std::size_t parent, std::span<const TokenId> choices, std::span<const double> chances,
            std::span<const TokenId> stop_ids);
  /// The tokens from the root's child to a node.
  std::vector<TokenId> path(std::size_t i) const;
  /// The nodes of the complete tree without its root, depth first, as TokenTree has them.
  std::vector<std::size_t> finish() const;

 private:
  /// The best nodes but the root, the likeliest first; a parent is before its children.
  std::vector<std::size_t> best() const;

  std::size_t most_;
  double worth_;
  std::vector<Node> nodes_;
};

}  // namespace outrider
