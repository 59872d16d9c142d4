#include "common/decoding/drafting/forecast.h"

#include <algorithm>
#include <vector>

#include "common/base/check.h"

namespace outrider {

void Forecast::observe(const RoundOutcome& outcome) {
  CHECK(outcome.drafted >= 0 && outcome.drafted <= kDraftLengthMax && outcome.accepted <= outcome.drafted, "{} of {}",
        outcome.accepted, outcome.drafted);
  verify_[static_cast<std::size_t>(outcome.drafted + 1)].observe(outcome.verify_s);
  other_.observe(outcome.round_s - outcome.verify_s - outcome.draft_s - outcome.draft_wire_s);
  if (drafted_ && outcome.drafted > 0) ahead_.observe(all_held_, outcome.ahead, outcome.draft_s + outcome.draft_wire_s);
  drafted_ = outcome.drafted > 0;
  all_held_ = outcome.accepted == outcome.drafted;
  if (outcome.drafted == 0) return;
  if (!outcome.ahead) {
    draft_per_token_.observe(outcome.draft_s, outcome.drafted);
    draft_wire_.observe(outcome.draft_wire_s);
  }
  for (int i = 0; i < std::min(outcome.drafted, outcome.accepted + 1); ++i)
    acceptance_[static_cast<std::size_t>(i)].observe(i < outcome.accepted ? 1 : 0);
}

void Forecast::forget_times() {
  verify_ = {};
  draft_per_token_ = draft_wire_ = other_ = {};
}

double Forecast::acceptance(int i) const {
  for (int tried = std::min(i, kDraftLengthMax - 1); tried >= 0; --tried) {
    if (const Mean& mean = acceptance_[static_cast<std::size_t>(tried)]; mean.count > 0) return mean.value();
  }
  return 0;
}

double Forecast::tau(int length) const {
  double tau = 1, survives = 1;
  for (int i = 0; i < length; ++i) tau += survives *= acceptance(i);
  return tau;
}

double Forecast::verify_s(int rows) const {
  std::vector<int> measured;
  for (int m = 1; m < static_cast<int>(verify_.size()); ++m) {
    if (verify_[static_cast<std::size_t>(m)].count > 0) measured.push_back(m);
  }
  const auto at = [&](std::size_t i) { return verify_[static_cast<std::size_t>(measured[i])].value(); };
  if (measured.empty()) return 0;
  if (measured.size() == 1) return at(0);
  const auto above = std::lower_bound(measured.begin(), measured.end(), rows) - measured.begin();
  const std::size_t right = static_cast<std::size_t>(std::clamp<std::ptrdiff_t>(above, 1, std::ssize(measured) - 1)),
                    left = right - 1;
  const double slope = (at(right) - at(left)) / (measured[right] - measured[left]);
  return std::max(at(left) + slope * (rows - measured[left]), 0.0);
}

RoundTerms Forecast::terms(int length) const {
  RoundTerms terms{.verify_s = verify_s(length + 1), .other_s = other_.value()};
  if (length == 0) return terms;
  terms.draft_s = length * draft_per_token_.value();
  terms.rtt_s = draft_wire_.value();
  double survives = 1;
  for (int i = 0; i < length; ++i) survives *= acceptance(i);
  terms.saved_s = ahead_.chance(survives, 0) * (terms.drafting_s() - ahead_.wait_s());
  return terms;
}

}  // namespace outrider
