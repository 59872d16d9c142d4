#include "lab/experiment/prediction.h"

#include <algorithm>

#include "lab/experiment/cpu_share.h"

namespace outrider {

void Acceptance::add(const RoundOutcome& round) {
  const std::vector<std::int64_t> held(static_cast<std::size_t>(round.accepted), 1);
  add({.drafted = std::vector<std::int64_t>(static_cast<std::size_t>(round.drafted), 1), .accepted = held});
}

void Acceptance::add(const Acceptance& other) {
  drafted.resize(std::max(drafted.size(), other.drafted.size()));
  accepted.resize(drafted.size());
  for (std::size_t i = 0; i < other.drafted.size(); ++i) drafted[i] += other.drafted[i];
  for (std::size_t i = 0; i < other.accepted.size(); ++i) accepted[i] += other.accepted[i];
}

std::vector<double> Acceptance::shares() const {
  std::vector<double> shares;
  for (std::size_t i = 0; i < drafted.size(); ++i)
    shares.push_back(drafted[i] == 0 ? 0 : static_cast<double>(accepted[i]) / static_cast<double>(drafted[i]));
  return shares;
}

void Calibration::observe(const RoundOutcome& outcome) {
  forecast_.observe(outcome);
  if (outcome.drafted == 0) return;
  requests_.observe(outcome.draft_rows, static_cast<double>(outcome.draft_bytes), /*keep=*/1);
}

void Calibration::observe_answer(double tokens, double prefill_s) {
  answers_ += 1;
  tokens_ += tokens;
  prefill_s_ += prefill_s;
}

double Calibration::request_bytes(double tau) const {
  if (requests_.n == 0) return 0;
  const double variance = requests_.variance_x(), per_row = variance > 0 ? requests_.covariance() / variance : 0;
  return (requests_.y - per_row * requests_.x) / requests_.n + per_row * tau;
}

namespace {

constexpr double kRttMaxMs = 1e5;  ///< limit of the break-even search

/// Returns the time of a round's drafts on the remote drafter's host, if their `draft_s` begin at a random moment.
double remote_drafting_s(const Axes& axes, int length, double draft_s) {
  return CpuShare::mean_s(draft_s, axes.drafter_cpu_share) + length * axes.drafter_added_ms / 1e3;
}

/// @param drafting_s  time of a round's drafts, for one sequence or for all @param exchange_s  their exchange's time
/// beyond the calibrated one @param own_cores  the drafter has cores of its own, so that halves may take turns
double predicted_rate(const Calibration& calibration, const Axes& axes, int length, double drafting_s,
                      double exchange_s, bool own_cores) {
  const RoundTerms terms = calibration.forecast().terms(length);
  const double alone_s = terms.seconds() - terms.draft_s + drafting_s + exchange_s;
  const double away_s = alone_s - terms.verify_s;
  const int sharing = axes.clients_a_verifier(), rows = sharing * (length + 1);
  // All meet in one forward pass, or two halves take turns, whichever is faster (round_cost.h, together()).
  double round_s = away_s + calibration.verify_s(rows);
  if (sharing > 1 && own_cores) {
    const double half_s = calibration.verify_s((sharing + 1) / 2 * (length + 1)) + terms.other_s;
    round_s = std::min(round_s, std::max({2 * half_s, 2 * drafting_s, away_s + half_s}));
  }
  return axes.clients * calibration.forecast().tau(length) / round_s;
}

}  // namespace

std::optional<Prediction> predict(const Calibration& calibration, const Axes& axes) {
  if (!axes.fixed_length() || axes.open_loop()) return std::nullopt;
  const int length = *axes.fixed_length();
  const RoundTerms plain = calibration.forecast().terms(0), terms = calibration.forecast().terms(length);
  const double remote_s = length > 0 ? remote_drafting_s(axes, length, terms.draft_s) : 0;
  Prediction prediction{.tau = calibration.forecast().tau(length),
                        .plain_round_ms = plain.seconds() * 1e3,
                        .verify_ms = terms.verify_s * 1e3,
                        .draft_ms = length > 0 ? terms.draft_s / length * 1e3 : 0,
                        .remote_draft_ms = length > 0 ? remote_s / length * 1e3 : 0,
                        .wire_ms = terms.rtt_s * 1e3,
                        .ahead = axes.drafts_ahead()};
  const auto exchange_s = [&](const Link& link) {
    return length == 0 ? 0 : link.exchange_ms(calibration.request_bytes(prediction.tau)) / 1e3;
  };
  prediction.exchange_ms = exchange_s(axes.link) * 1e3;
  prediction.plain = predicted_rate(calibration, axes, 0, 0, 0, false);
  prediction.colocated = predicted_rate(calibration, axes, length, terms.draft_s, 0, false);
  prediction.remote = predicted_rate(calibration, axes, length, remote_s, exchange_s(axes.link), true);
  const auto rate_over = [&](double rtt_ms) {
    Link link = axes.link;
    link.rtt_ms = rtt_ms;
    return predicted_rate(calibration, axes, length, remote_s, exchange_s(link), true);
  };
  if (length > 0 && rate_over(0) >= prediction.plain) {
    double pays_ms = 0, loses_ms = kRttMaxMs;
    for (int i = 0; i < 60; ++i) {
      const double middle_ms = (pays_ms + loses_ms) / 2;
      (rate_over(middle_ms) >= prediction.plain ? pays_ms : loses_ms) = middle_ms;
    }
    prediction.break_even_rtt_ms = pays_ms;
  }
  if (length > 0) {
    prediction.capacity = 1 + terms.draft_s / terms.verify_s;
    const int sharing = axes.clients_a_verifier();
    prediction.capacity_shared = 1 + sharing * terms.draft_s / calibration.verify_s(sharing * (length + 1));
  }
  return prediction;
}

Axes with_seen_link(const Axes& axes, const Calibration& calibration, const Calibration& there) {
  Axes seen = axes;
  const int length = axes.fixed_length().value_or(0);
  if (length == 0) return seen;
  const RoundTerms near = calibration.forecast().terms(length), far = there.forecast().terms(length);
  seen.link.rtt_ms = std::max(0.0, far.rtt_s - near.rtt_s) * 1e3;
  seen.drafter_added_ms = (far.draft_s - near.draft_s) / length * 1e3;
  return seen;
}

std::vector<int> calibrated_lengths(const Axes& axes) {
  const std::optional<int> length = axes.fixed_length();
  if (!length || axes.open_loop()) return {};
  std::vector<int> lengths;
  for (const int drafts : {0, *length, axes.clients_a_verifier() - 1, axes.clients_a_verifier() * (*length + 1) - 1})
    lengths.push_back(std::min(drafts, kDraftLengthMax));
  std::ranges::sort(lengths);
  lengths.erase(std::ranges::unique(lengths).begin(), lengths.end());
  return lengths;
}

double best_rate(const Calibration& calibration, const Axes& axes) {
  double best = 0;
  for (const int length : {0, 1, 2, 4, 8, 16}) {
    Axes fixed = axes;
    fixed.draft_length = std::to_string(length);
    fixed.arrivals = {};
    best = std::max(best, predict(calibration, fixed)->remote);
  }
  return best;
}

}  // namespace outrider
