#include "lab/experiment/prediction.h"

#include <algorithm>

namespace outrider {

void Calibration::observe(const RoundOutcome& outcome) {
  forecast_.observe(outcome);
  if (outcome.drafted == 0) return;
  const double rows = outcome.draft_rows, bytes = static_cast<double>(outcome.draft_bytes);
  rounds_ += 1;
  rows_ += rows;
  bytes_ += bytes;
  rows_rows_ += rows * rows;
  rows_bytes_ += rows * bytes;
}

void Calibration::observe_answer(double tokens, double prefill_s) {
  answers_ += 1;
  tokens_ += tokens;
  prefill_s_ += prefill_s;
}

double Calibration::request_bytes(double tau) const {
  if (rounds_ == 0) return 0;
  const double variance = rows_rows_ - rows_ * rows_ / rounds_, covariance = rows_bytes_ - rows_ * bytes_ / rounds_;
  const double per_row = variance > 0 ? covariance / variance : 0;
  return (bytes_ - per_row * rows_) / rounds_ + per_row * tau;
}

namespace {

/// @param draft_s, exchange_s  what a draft and the drafts' exchange take longer than calibrated
double predicted_rate(const Calibration& calibration, const Axes& axes, int length, double draft_s, double exchange_s) {
  const double clients = axes.clients, drafters = axes.drafters;
  const RoundTerms terms = calibration.forecast().terms(length);
  const double tau = calibration.forecast().tau(length), drafting_s = terms.draft_s + length * draft_s;
  const double alone = clients * tau / (terms.seconds() + length * draft_s + exchange_s);
  const int rows = axes.clients_a_verifier() * (length + 1);
  const double verifying = clients * tau / (calibration.verify_s(rows) + terms.other_s);
  const double drafting = drafting_s > 0 ? drafters * tau / drafting_s : verifying;
  return std::min({alone, verifying, drafting});
}

}  // namespace

std::optional<Prediction> predict(const Calibration& calibration, const Axes& axes) {
  if (!axes.fixed_length() || axes.open_loop()) return std::nullopt;
  const int length = *axes.fixed_length();
  const RoundTerms plain = calibration.forecast().terms(0), terms = calibration.forecast().terms(length);
  const double added_s = axes.drafter_added_ms / 1e3;
  Prediction prediction{.tau = calibration.forecast().tau(length),
                        .plain_round_ms = plain.seconds() * 1e3,
                        .verify_ms = terms.verify_s * 1e3,
                        .draft_ms = length > 0 ? terms.draft_s / length * 1e3 : 0,
                        .wire_ms = terms.rtt_s * 1e3};
  const auto exchange_s = [&](const Link& link) {
    return length == 0 ? 0 : link.exchange_ms(calibration.request_bytes(prediction.tau)) / 1e3;
  };
  prediction.exchange_ms = exchange_s(axes.link) * 1e3;
  prediction.plain = predicted_rate(calibration, axes, 0, 0, 0);
  prediction.colocated = predicted_rate(calibration, axes, length, 0, 0);
  prediction.remote = predicted_rate(calibration, axes, length, added_s, exchange_s(axes.link));
  Link near = axes.link;
  near.rtt_ms = 0;
  // Longer round trips do not slow a drafter or a verifier that is always at work: only a client's own round.
  if (length > 0 && predicted_rate(calibration, axes, length, added_s, exchange_s(near)) >= prediction.plain) {
    const double longest_s = axes.clients * prediction.tau / prediction.plain;
    const double rest_s = terms.seconds() + length * added_s + exchange_s(near);
    prediction.break_even_rtt_ms = (longest_s - rest_s) * 1e3;
  }
  if (length > 0) {
    prediction.capacity = 1 + terms.draft_s / terms.verify_s;
    const int sharing = axes.clients_a_verifier();
    prediction.capacity_shared = 1 + sharing * terms.draft_s / calibration.verify_s(sharing * (length + 1));
  }
  return prediction;
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
