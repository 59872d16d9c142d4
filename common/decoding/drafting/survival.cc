#include "common/decoding/drafting/survival.h"

#include <algorithm>

namespace outrider {
namespace {

/// Weight of the prior, in trials.
constexpr double kPriorTrials = 4;

}  // namespace

void Survival::observe(int drafted, int accepted) {
  if (drafted == 0) {
    for (Count& count : counts_) count = {keep_ * count.accepted, keep_ * count.tried};
  }
  for (int i = 0; i < std::min({drafted, accepted + 1, kDraftLengthMax}); ++i) {
    Count& count = counts_[static_cast<std::size_t>(i)];
    count.accepted = keep_ * count.accepted + (i < accepted ? 1 : 0);
    count.tried = keep_ * count.tried + 1;
  }
}

std::array<double, kDraftLengthMax> Survival::conditional() const {
  constexpr double kFirst = 0.7;  // the first guess: high enough to try
  std::array<double, kDraftLengthMax> prior = {};
  if (prior_ != nullptr) prior = prior_->conditional();
  std::array<double, kDraftLengthMax> a = {};
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double expected = prior_ != nullptr ? prior[i] : i == 0 ? kFirst : a[i - 1];
    a[i] = (counts_[i].accepted + kPriorTrials * expected) / (counts_[i].tried + kPriorTrials);
  }
  return a;
}

SourceSurvival::SourceSurvival(double keep, double keep_behind, const SourceSurvival* prior)
    : rows_(keep_behind), tokens_(keep_behind), prior_(prior) {
  for (std::size_t i = 0; i < kDraftSources; ++i) {
    of_[i] = Survival(keep, prior != nullptr ? &prior->of_[i] : nullptr);
    behind_[i] = Survival(keep_behind, prior != nullptr ? &prior->behind_[i] : nullptr);
  }
}

void SourceSurvival::observe(const RoundOutcome& outcome) {
  if (outcome.tree)
    return of_[static_cast<std::size_t>(outcome.source)].observe(outcome.tree->chain, outcome.tree->accepted);
  const int own = outcome.own();
  of_[static_cast<std::size_t>(outcome.source)].observe(own, std::min(own, outcome.accepted));
  int left = outcome.accepted - own;
  if (own > 0 && outcome.source == DraftSource::kAssistant) {
    rows_.observe(outcome.drafted - own);
    if (left >= 0) tokens_.observe(left);
  }
  for (const DraftSource source : kLookUps) {
    const int drafted = outcome.behind[static_cast<std::size_t>(source)];
    // Nothing was tried after a rejected draft.
    if (drafted > 0 && left >= 0) behind_[static_cast<std::size_t>(source)].observe(drafted, std::min(drafted, left));
    left -= drafted;
  }
}

SourceSurvival::RoundSoFar SourceSurvival::so_far(const RoundOutcome& begun) const {
  RoundSoFar so_far;
  const auto go_on = [&](const Survival& survival, int drafts) {
    const auto a = survival.conditional();
    for (int i = 0; i < drafts; ++i) so_far.tokens += so_far.survives *= a[static_cast<std::size_t>(i)];
  };
  go_on(of(begun.source), begun.own());
  for (const DraftSource source : kLookUps) go_on(behind(source), begun.behind[static_cast<std::size_t>(source)]);
  return so_far;
}

SourceSurvival::Followed SourceSurvival::followed() const {
  const Followed prior = prior_ != nullptr ? prior_->followed() : Followed();
  const auto with_prior = [](const FadingMean& mean, double on) {
    return (mean.value() * mean.weight() + kPriorTrials * on) / (mean.weight() + kPriorTrials);
  };
  return {with_prior(rows_, prior.rows), with_prior(tokens_, prior.tokens)};
}

}  // namespace outrider
