#include "common/policy/tree_gain.h"

#include <algorithm>
#include <queue>

namespace outrider {
namespace {

constexpr double kSecondChoice = 1.0 / 3;
/// How much more second choices bring on nano, since the drafter chooses among them by its own probabilities.
constexpr double kChosenWell = 1.5;

/// Drafts that are kept on average of a tree of fixed shape.
struct Kept {
  double along_first = 0, else_where = 0;  ///< of those along first choices, and of all others
};

/// With 0, 1, ... `most` drafts.
std::vector<Kept> kept_of_likeliest(const std::array<double, kDraftLengthMax>& a, int most) {
  struct Node {
    double weight = 1;  ///< the chance that it is kept
    std::size_t depth = 0;
    bool first = true;  ///< along first choices
    bool operator<(const Node& other) const { return weight < other.weight; }
  };
  std::priority_queue<Node> next;
  const auto grow = [&](const Node& node) {
    if (node.depth == a.size()) return;
    const double holds = a[node.depth], other = std::min(holds, (1 - holds) * kSecondChoice);
    next.push({node.weight * holds, node.depth + 1, node.first});
    next.push({node.weight * other, node.depth + 1, false});
  };
  grow({});
  std::vector<Kept> kept = {{}};
  while (std::ssize(kept) <= most && !next.empty()) {
    const Node node = next.top();
    next.pop();
    kept.push_back(kept.back());
    (node.first ? kept.back().along_first : kept.back().else_where) += node.weight;
    grow(node);
  }
  return kept;
}

}  // namespace

double TreeGain::factor() const {
  constexpr double kPriorDrafts = 2;  // kept ones: of some four rounds
  const double prior = prior_ != nullptr ? prior_->factor() : kChosenWell;
  return (kept_.value() * kept_.weight() + kPriorDrafts * prior) / (kept_.weight() + kPriorDrafts);
}

std::vector<double> TreeGain::tokens(const std::array<double, kDraftLengthMax>& a, int most) const {
  const double better = factor();
  std::vector<double> tokens;
  for (const Kept& kept : kept_of_likeliest(a, most)) tokens.push_back(1 + kept.along_first + better * kept.else_where);
  return tokens;
}

void TreeGain::observe(const std::array<double, kDraftLengthMax>& a, const RoundOutcome& outcome) {
  const Kept kept = kept_of_likeliest(a, outcome.drafted).back();
  double along_first = 0, survives = 1;
  for (int i = 0; i < std::min(outcome.tree->chain, kDraftLengthMax); ++i)
    along_first += survives *= a[static_cast<std::size_t>(i)];
  kept_.observe(outcome.accepted - outcome.tree->held + along_first - kept.along_first, kept.else_where);
}

}  // namespace outrider
