#include "common/decoding/drafting/survival.h"

#include <algorithm>

namespace outrider {
namespace {

/// Weight of the prior, in trials.
constexpr double kPriorTrials = 4;

}  // namespace

void Survival::observe(int drafted, int accepted) {
  if (drafted == 0) {
    for (Count& count : counts_) count = {keep_ * count.held, keep_ * count.tried};
  }
  for (int i = 0; i < std::min({drafted, accepted + 1, kDraftLengthMax}); ++i) {
    Count& count = counts_[static_cast<std::size_t>(i)];
    count.held = keep_ * count.held + (i < accepted ? 1 : 0);
    count.tried = keep_ * count.tried + 1;
  }
}

std::array<double, kDraftLengthMax> Survival::conditional() const {
  constexpr double kFirst = 0.7;  // the first guess: high enough to try
  std::array<double, kDraftLengthMax> prior = {};
  if (prior_ != nullptr) prior = prior_->conditional();
  std::array<double, kDraftLengthMax> a = {};
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double lean = prior_ != nullptr ? prior[i] : i == 0 ? kFirst : a[i - 1];
    a[i] = (counts_[i].held + kPriorTrials * lean) / (counts_[i].tried + kPriorTrials);
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
    return of_[static_cast<std::size_t>(outcome.source)].observe(outcome.tree->chain, outcome.tree->held);
  const int own = outcome.own();
  of_[static_cast<std::size_t>(outcome.source)].observe(own, std::min(own, outcome.accepted));
  int held = outcome.accepted - own;
  if (own > 0 && outcome.source == DraftSource::kAssistant) {
    rows_.observe(outcome.drafted - own);
    if (held >= 0) tokens_.observe(held);
  }
  for (const DraftSource source : kLookUps) {
    const int drafted = outcome.behind[static_cast<std::size_t>(source)];
    // Nothing was tried after a rejected draft.
    if (drafted > 0 && held >= 0) behind_[static_cast<std::size_t>(source)].observe(drafted, std::min(drafted, held));
    held -= drafted;
  }
}

SourceSurvival::Reach SourceSurvival::reach(const RoundOutcome& begun) const {
  Reach reach;
  const auto go_on = [&](const Survival& survival, int drafts) {
    const auto a = survival.conditional();
    for (int i = 0; i < drafts; ++i) reach.tokens += reach.survives *= a[static_cast<std::size_t>(i)];
  };
  go_on(of(begun.source), begun.own());
  for (const DraftSource source : kLookUps) go_on(behind(source), begun.behind[static_cast<std::size_t>(source)]);
  return reach;
}

SourceSurvival::Followed SourceSurvival::followed() const {
  const Followed prior = prior_ != nullptr ? prior_->followed() : Followed();
  const auto lean = [](const FadingMean& mean, double on) {
    return (mean.value() * mean.weight() + kPriorTrials * on) / (mean.weight() + kPriorTrials);
  };
  return {lean(rows_, prior.rows), lean(tokens_, prior.tokens)};
}

}  // namespace outrider
