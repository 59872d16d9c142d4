#include "common/decoding/drafting/tree_gain.h"

#include <algorithm>

namespace outrider {
namespace {

/// Prior from nano: 1.13 with 8 drafts, 1.25 with 15 (docs/lab/trees.md).
double expected_gain(int drafts) { return 1 + drafts / 60.0; }

}  // namespace

double TreeGain::with_prior(const FadingMean& share, double prior) {
  constexpr double kPriorDrafts = 16;  // kept ones: about five rounds
  return (share.value() * share.weight() + kPriorDrafts * prior) / (share.weight() + kPriorDrafts);
}

double TreeGain::chain_share() const { return with_prior(chains_, prior_ != nullptr ? prior_->chain_share() : 1); }

double TreeGain::tree_share() const { return with_prior(trees_, prior_ != nullptr ? prior_->tree_share() : 1); }

double TreeGain::over_chain(int drafts) const { return expected_gain(drafts) * tree_share() / chain_share(); }

void TreeGain::observe(const std::array<double, kDraftLengthMax>& conditional, const RoundOutcome& outcome) {
  // Drafts made ahead, from an older state, are accepted less often.
  if (outcome.source != DraftSource::kAssistant || outcome.ahead || (outcome.own() == 0 && !outcome.tree)) return;
  // A tree in which nothing was worth a row counts as a rejected first draft.
  const int drafts = std::clamp(outcome.own(), 1, kDraftLengthMax);
  double kept = 0, survives = 1;
  for (int i = 0; i < drafts; ++i) kept += survives *= conditional[static_cast<std::size_t>(i)];
  FadingMean& tried = outcome.tree ? trees_ : chains_;
  tried.observe(std::min(drafts, outcome.accepted), outcome.tree ? kept * expected_gain(drafts) : kept);
  (outcome.tree ? chains_ : trees_).observe(0, 0);
}

}  // namespace outrider
