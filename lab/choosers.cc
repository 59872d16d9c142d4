#include "lab/choosers.h"

#include <algorithm>
#include <cmath>

#include "common/base/check.h"

namespace outrider {
namespace {

/// An arm longer than the limit is played as far as the limit goes, as long as its source can draft at all.
bool playable(const Arm& arm, const DraftLimits& limits) {
  return arm.length == 0 ? !limits.must_draft || std::max({limits.assistant, limits.ngram, limits.table}) <= 0
                         : limits.of(arm.source) > 0;
}

DraftPlan play(const std::vector<Arm>& arms, std::size_t i, const DraftLimits& limits) {
  return {.source = arms[i].source, .length = std::min(arms[i].length, limits.of(arms[i].source))};
}

/// Marsaglia and Tsang 2000, for shape >= 1.
double gamma_sample(double shape, CounterRng& random) {
  const double d = shape - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  while (true) {
    // Box and Muller; 1 - u is in (0, 1].
    const double radius = std::sqrt(-2 * std::log(1 - random.uniform())),
                 angle = 2 * std::acos(-1.0) * random.uniform();
    const double x = radius * std::cos(angle), v = 1 + c * x;
    if (v <= 0) continue;
    const double cube = v * v * v;
    if (std::log(1 - random.uniform()) < 0.5 * x * x + d - d * cube + d * std::log(cube)) return d * cube;
  }
}

double beta_sample(double alpha, double beta, CounterRng& random) {
  const double a = gamma_sample(alpha, random), b = gamma_sample(beta, random);
  return a / (a + b);
}

}  // namespace

DraftPlan HeuristicLength::choose(const DraftLimits& limits) { return {.length = std::min(length_, limits.assistant)}; }

void HeuristicLength::observe(const DraftPlan& /*plan*/, const RoundOutcome& outcome) {
  if (outcome.drafted == 0) return;
  length_ = outcome.accepted == outcome.drafted ? std::min(length_ + 2, kDraftLengthMax) : std::max(1, length_ - 1);
}

std::vector<Arm> default_arms() {
  std::vector<Arm> arms = {{}};
  for (const int length : {1, 2, 3, 4, 6, 8, 12, 16}) arms.push_back({DraftSource::kAssistant, length});
  for (const int length : {2, 4, 8}) arms.push_back({DraftSource::kNgram, length});
  return arms;
}

// ---- UCB1 ----

Ucb1Length::Ucb1Length(std::vector<Arm> arms, const Options& options)
    : arms_(std::move(arms)), options_(options), stats_(arms_.size()) {
  CHECK(!arms_.empty() && options.discount > 0 && options.discount <= 1, "{} arms, discount {}", arms_.size(),
        options.discount);
}

DraftPlan Ucb1Length::choose(const DraftLimits& limits) {
  double pulls = 0, best_rate = 0;
  for (const Stats& stats : stats_) {
    pulls += stats.pulls;
    if (stats.seconds > 0) best_rate = std::max(best_rate, stats.tokens / stats.seconds);
  }
  double best = -1;
  std::size_t chosen = arms_.size();
  for (std::size_t i = 0; i < arms_.size(); ++i) {
    if (!playable(arms_[i], limits)) continue;
    const Stats& stats = stats_[i];
    double index = std::numeric_limits<double>::max();  // never played
    if (stats.pulls > 1e-9 && stats.seconds > 0) {
      index = stats.tokens / stats.seconds / best_rate +
              options_.exploration * std::sqrt(std::log(std::max(pulls, 1.0)) / stats.pulls);
    }
    if (index <= best) continue;
    best = index;
    chosen = i;
  }
  played_ = chosen;
  return chosen == arms_.size() ? DraftPlan() : play(arms_, chosen, limits);
}

void Ucb1Length::observe(const DraftPlan& /*plan*/, const RoundOutcome& outcome) {
  if (played_ == arms_.size()) return;  // none could be played
  for (Stats& stats : stats_) {
    stats.pulls *= options_.discount;
    stats.tokens *= options_.discount;
    stats.seconds *= options_.discount;
  }
  Stats& stats = stats_[played_];
  stats.pulls += 1;
  stats.tokens += outcome.accepted + 1;
  stats.seconds += outcome.round_s;
}

// ---- Thompson ----

ThompsonLength::ThompsonLength(std::vector<Arm> arms, const Estimates& estimates, std::uint64_t seed, double discount)
    : arms_(std::move(arms)), estimates_(estimates), seed_(seed), discount_(discount) {
  CHECK(!arms_.empty() && discount > 0 && discount <= 1, "{} arms, discount {}", arms_.size(), discount);
}

DraftPlan ThompsonLength::choose(const DraftLimits& limits) {
  if (!estimates_.knows_plain() && !limits.must_draft) return {};
  CounterRng random(mix64(seed_ + ++draws_));
  std::array<std::array<double, kDraftLengthMax + 1>, kDraftSources> tau;  // by drafts
  for (std::size_t s = 0; s < kDraftSources; ++s) {
    double survives = 1;
    tau[s][0] = 1;
    for (std::size_t i = 0; i < kDraftLengthMax; ++i) {
      survives *= beta_sample(1 + positions_[s][i].held, 1 + positions_[s][i].missed, random);
      tau[s][i + 1] = tau[s][i] + survives;
    }
  }
  DraftPlan best;
  double best_rate = -1;
  for (std::size_t i = 0; i < arms_.size(); ++i) {
    if (!playable(arms_[i], limits)) continue;
    const DraftPlan choice = play(arms_, i, limits);
    const double emitted = tau[static_cast<std::size_t>(choice.source)][static_cast<std::size_t>(choice.length)];
    const double rate =
        choice.length == 0 ? 1 / std::max(estimates_.plain_s.value(), 1e-12)
                           : tokens_per_second(emitted, round_terms(estimates_, choice.source, choice.length, emitted));
    if (rate <= best_rate) continue;
    best_rate = rate;
    best = choice;
  }
  return best;
}

void ThompsonLength::observe(const DraftPlan& /*plan*/, const RoundOutcome& outcome) {
  for (auto& source : positions_) {
    for (Beta& beta : source) {
      beta.held *= discount_;
      beta.missed *= discount_;
    }
  }
  auto& positions = positions_[static_cast<std::size_t>(outcome.source)];
  for (int i = 0; i < std::min({outcome.drafted, outcome.accepted + 1, kDraftLengthMax}); ++i) {
    Beta& beta = positions[static_cast<std::size_t>(i)];
    (i < outcome.accepted ? beta.held : beta.missed) += 1;
  }
}

}  // namespace outrider
