#include "common/decoding/drafting/batch_goodput.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "common/base/check.h"

namespace outrider {

void BatchGoodput::update(Key key, const Survives& survives, int most, int drafters,
                          const SourceSurvival::Followed& followed) {
  auto entry = std::ranges::find(sequences_, key, &Sequence::key);
  if (entry == sequences_.end()) {
    entry = sequences_.insert(entry, {.key = key});
    planned_ = false;
  }
  entry->survives = survives;
  entry->most = std::min(most, kDraftLengthMax);
  entry->followed = followed;
  drafters_ = std::max(1, drafters);
  ++updates_;
}

void BatchGoodput::forget(Key key) {
  if (std::erase_if(sequences_, [&](const Sequence& other) { return other.key == key; }) > 0) planned_ = false;
}

BatchGoodput::Plan BatchGoodput::best(const Estimates& estimates, const std::vector<Place>& places) const {
  const int sequences = static_cast<int>(sequences_.size());
  // A round of all sequences is modelled as one of the last sequence, beside the others' work.
  const auto rate_of = [&](double tokens, int drafts, int longest) {
    const OtherWork other_work{.sequences = sequences - 1,
                               .rows = sequences - 1 + drafts,
                               .drafts = drafts,
                               .longest = longest,
                               .drafters = drafters_};
    const RoundTerms terms = round_terms(estimates, DraftSource::kAssistant, 0, tokens / sequences, other_work);
    return tokens / together(estimates, terms, other_work, 0).seconds;
  };
  double tokens = sequences;
  int longest = 0;
  Plan best{.tokens = tokens, .rate = rate_of(tokens, 0, 0)};
  const int most = std::min(static_cast<int>(places.size()), estimates.rows_most() - sequences);
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
  for (const Sequence& sequence : sequences_) {
    for (int i = 0; i < sequence.most; ++i) places.push_back({sequence.survives[static_cast<std::size_t>(i)], i + 1});
  }
  std::ranges::sort(places, std::greater<>(), &Place::chance);
  plan_ = best(estimates, places);
  const double least = plan_.drafts == 0 ? 2 : places[static_cast<std::size_t>(plan_.drafts - 1)].chance;
  for (Sequence& sequence : sequences_) {
    const auto end = sequence.survives.begin() + sequence.most;
    sequence.planned =
        static_cast<int>(std::find_if(sequence.survives.begin(), end, [&](double chance) { return chance < least; }) -
                         sequence.survives.begin());
  }
}

Others BatchGoodput::others(Key key, const Estimates& estimates) {
  plan(estimates);
  const auto found = std::ranges::find(sequences_, key, &Sequence::key);
  DCHECK(found != sequences_.end());
  const Sequence& own = *found;
  const int sequences = static_cast<int>(sequences_.size()) - 1, drafts = std::max(0, plan_.drafts - own.planned);
  int longest = 0;
  SourceSurvival::Followed followed;
  for (const Sequence& other : sequences_) {
    if (other.key == key || other.planned == 0) continue;
    longest = std::max(longest, other.planned);
    followed.rows += other.followed.rows;
    followed.tokens += other.survives[static_cast<std::size_t>(other.planned) - 1] * other.followed.tokens;
  }
  double own_tokens = 1;
  for (int i = 0; i < own.planned; ++i) own_tokens += own.survives[static_cast<std::size_t>(i)];
  return {.other_work = {.sequences = sequences,
                         .rows = sequences + drafts + static_cast<int>(std::lround(followed.rows)),
                         .drafts = drafts,
                         .longest = longest,
                         .drafters = drafters_},
          .tokens = std::max<double>(sequences, plan_.tokens - own_tokens) + followed.tokens};
}

void BatchGoodput::earn(int tokens) {
  constexpr double kShare = 0.01, kMost = 16;
  allowance_ = std::min(kMost, allowance_ + kShare * tokens);
}

bool BatchGoodput::spend(double tokens) {
  tokens *= std::max<double>(1, static_cast<double>(sequences_.size()));
  if (allowance_ < tokens) return false;
  allowance_ -= tokens;
  return true;
}

}  // namespace outrider
