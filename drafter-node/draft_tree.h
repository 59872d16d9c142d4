#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/base/ids.h"

namespace outrider {

/// Returns the acceptance probabilities of drawn choices, from those of the most probable tokens. A drawn token is
/// accepted more often than it is probable: two close distributions mostly draw alike (match), or accept each other's
/// draws (rejection). Each choice counts halfway between certain acceptance and its share of the rest.
std::vector<double> chances_of_draws(std::vector<double> most_probable);

/// A token tree that grows from the last emitted token: the `most` nodes that are the most likely to be kept, by the
/// drafter's own probabilities (EAGLE-2, Li et al. 2024, expands and chooses in the same way).
///
/// A child's weight is its parent's times the probability of the drafter's r-th most probable token there, if it is the
/// r-th choice. For drawn choices (chances_of_draws) too the rank counts and not the drawn token: a node's presence
/// then depends neither on its token nor on its descendants, and drawn tokens keep their distribution's law
/// (docs/sampling.md).
class DraftTree {
 public:
  struct Node {
    TokenId token = 0;
    std::int32_t depth = 0;
    std::size_t parent = 0;
    double weight = 1;
    std::uint64_t branch = 0;  ///< 0 along first choices, else unique to this node: selects its noise
    bool grown = false;        ///< its children were added, or it has none
  };

  /// @param most  nodes, without the root
  /// @param worth  nodes of a smaller weight are left out
  DraftTree(TokenId root, std::int64_t most, double worth)
      : most_(static_cast<std::size_t>(most)), worth_(worth), nodes_{{.token = root}} {}

  const Node& node(std::size_t i) const { return nodes_[i]; }
  /// Returns the nodes whose children are wanted next, for one step; none: the tree is complete.
  std::vector<std::size_t> next() const;
  /// Adds the children of a node, its first choice first.
  /// @param chances  of the ranks, never rising
  /// @param stop_ids  nothing grows from these
  void grow(std::size_t parent, std::span<const TokenId> choices, std::span<const double> chances,
            std::span<const TokenId> stop_ids);
  /// The tokens from the root's child to a node.
  std::vector<TokenId> path(std::size_t i) const;
  /// Returns the nodes of the complete tree without its root, in TokenTree's depth-first order.
  std::vector<std::size_t> finish() const;

 private:
  /// Returns the best nodes without the root, the most probable first; a parent is before its children.
  std::vector<std::size_t> best() const;

  std::size_t most_;
  double worth_;
  std::vector<Node> nodes_;
};

}  // namespace outrider
