#include "common/decoding/drafting/batch_goodput.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "common/base/check.h"

namespace outrider {

void BatchGoodput::update(Key text, const Survives& survives, int most, int drafters,
                          const SourceSurvival::Followed& followed) {
  auto entry = std::ranges::find(texts_, text, &Text::key);
  if (entry == texts_.end()) {
    entry = texts_.insert(entry, {.key = text});
    planned_ = false;
  }
  entry->survives = survives;
  entry->most = std::min(most, kDraftLengthMax);
  entry->followed = followed;
  drafters_ = std::max(1, drafters);
  ++updates_;
}

void BatchGoodput::forget(Key text) {
  if (std::erase_if(texts_, [&](const Text& other) { return other.key == text; }) > 0) planned_ = false;
}

BatchGoodput::Plan BatchGoodput::best(const Estimates& estimates, const std::vector<Place>& places,
                                      double contention) const {
  const int texts = static_cast<int>(texts_.size());
  // A round of all sequences is modelled as one of the last sequence, with the others as its company.
  const auto rate_of = [&](double tokens, int drafts, int longest) {
    const Company company{.texts = texts - 1,
                          .rows = texts - 1 + drafts,
                          .drafts = drafts,
                          .longest = longest,
                          .drafters = drafters_,
                          .contention = contention};
    const RoundTerms terms = round_terms(estimates, DraftSource::kAssistant, 0, tokens / texts, company);
    return tokens / together_s(estimates, terms, company, 0);
  };
  double tokens = texts;
  int longest = 0;
  Plan best{.tokens = tokens, .rate = rate_of(tokens, 0, 0)};
  const int most = std::min(static_cast<int>(places.size()), estimates.rows_most() - texts);
  for (int drafts = 1; drafts <= most; ++drafts) {
    const Place& place = places[static_cast<std::size_t>(drafts - 1)];
    tokens += place.chance;
    longest = std::max(longest, place.depth);
    const double rate = rate_of(tokens, drafts, longest);
    if (rate > best.rate) best = {.drafts = drafts, .tokens = tokens, .rate = rate};
  }
  return best;
}

void BatchGoodput::plan(const Estimates& estimates) {
  if (planned_ && updates_ < updates_a_plan()) return;
  planned_ = true;
  updates_ = 0;
  std::vector<Place> places;
  for (const Text& text : texts_) {
    for (int i = 0; i < text.most; ++i) places.push_back({text.survives[static_cast<std::size_t>(i)], i + 1});
  }
  std::ranges::sort(places, std::greater<>(), &Place::chance);
  plan_ = best(estimates, places, contention());
  const bool may_be_contended = plan_.drafts == 0 && texts_.size() > 1 && contention() > 1;
  try_without_contention(may_be_contended && best(estimates, places, 1).rate > kClearly * plan_.rate);
  const double least = plan_.drafts == 0 ? 2 : places[static_cast<std::size_t>(plan_.drafts - 1)].chance;
  for (Text& text : texts_) {
    const auto end = text.survives.begin() + text.most;
    text.planned =
        static_cast<int>(std::find_if(text.survives.begin(), end, [&](double chance) { return chance < least; }) -
                         text.survives.begin());
  }
}

Others BatchGoodput::others(Key text, const Estimates& estimates) {
  plan(estimates);
  const auto found = std::ranges::find(texts_, text, &Text::key);
  DCHECK(found != texts_.end());
  const Text& own = *found;
  const int texts = static_cast<int>(texts_.size()) - 1, drafts = std::max(0, plan_.drafts - own.planned);
  int longest = 0;
  SourceSurvival::Followed followed;
  for (const Text& other : texts_) {
    if (other.key == text || other.planned == 0) continue;
    longest = std::max(longest, other.planned);
    followed.rows += other.followed.rows;
    followed.tokens += other.survives[static_cast<std::size_t>(other.planned) - 1] * other.followed.tokens;
  }
  double own_tokens = 1;
  for (int i = 0; i < own.planned; ++i) own_tokens += own.survives[static_cast<std::size_t>(i)];
  return {.company = {.texts = texts,
                      .rows = texts + drafts + static_cast<int>(std::lround(followed.rows)),
                      .drafts = drafts,
                      .longest = longest,
                      .drafters = drafters_,
                      .contention = contention()},
          .tokens = std::max<double>(texts, plan_.tokens - own_tokens) + followed.tokens};
}

void BatchGoodput::try_without_contention(bool contended) {
  constexpr double kLength = 12, kSettled = 16;  // in rounds of all sequences
  const double rounds = static_cast<double>(updates_a_plan()) / static_cast<double>(texts_.size());
  if (try_.left > 0) {
    try_.left -= rounds;
    return;
  }
  try_.drafting = plan_.drafts > 0 ? try_.drafting + rounds : 0;
  if (try_.drafting > kSettled) try_.wait = kTryWaitMin;
  if (plan_.drafts > 0) try_.contended = 0;
  if (!contended || (try_.contended += rounds) <= try_.wait) return;
  try_ = {.left = kLength, .wait = std::min(2 * try_.wait, kTryWaitMax)};
  contention_ = FadingMean(keeps::kContention);
}

double BatchGoodput::contention() const {
  constexpr double kDoubt = 2.5;  // in rounds that consist of drafting only
  if (try_.left > 0) return 1;
  return (contention_.value() * contention_.weight() + kDoubt) / (contention_.weight() + kDoubt);
}

void BatchGoodput::observe(double expected_s, double draft_s, double seconds) {
  if (draft_s <= 0) return;
  // Weighted by the share of drafting: rounds with few drafts, such as an answer's last, wait for other forward passes
  // regardless. With full weight they would raise the contention until all sequences took turns. A round that was
  // shorter than expected had less company than planned.
  const double share = draft_s / expected_s;
  contention_.observe(share * std::clamp(1 + (seconds - expected_s) / draft_s, 1.0, 4.0), share);
}

void BatchGoodput::earn(int tokens) {
  constexpr double kShare = 0.01, kMost = 16;
  allowance_ = std::min(kMost, allowance_ + kShare * tokens);
}

bool BatchGoodput::spend(double tokens) {
  tokens *= std::max<double>(1, static_cast<double>(texts_.size()));
  if (allowance_ < tokens) return false;
  allowance_ -= tokens;
  return true;
}

}  // namespace outrider
