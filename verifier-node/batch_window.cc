#include "verifier-node/batch_window.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>
#include <vector>

namespace outrider {

namespace {

/// Least deviation of a round trip, however regular its last times were (RFC 6298's clock granularity).
constexpr double kDeviationMin = 50e-6;

}  // namespace

void BatchWindow::left(SessionId id, TimePoint now) { sequences_[id].away_since = now; }

void BatchWindow::returned(SessionId id, std::int64_t rows, TimePoint now) {
  Sequence& sequence = sequences_[id];
  sequence.rows = rows;
  if (!sequence.away_since) return;
  const double away_s = to_seconds(now - *std::exchange(sequence.away_since, std::nullopt));
  Away& away = sequence.away[sequence.drafts()];
  if (!std::exchange(away.known, true)) {
    away.mean_s = away_s;
    away.deviation_s = away_s / 2;
    return;
  }
  away.deviation_s += (std::abs(away_s - away.mean_s) - away.deviation_s) / 4;
  away.mean_s += (away_s - away.mean_s) / 8;
}

void BatchWindow::observe_forward(std::int64_t rows, Duration took) {
  forward_.observe(static_cast<double>(rows), to_seconds(took));
}

std::optional<double> BatchWindow::returns_in(const Sequence& sequence, TimePoint now) {
  const Away& away = sequence.away[sequence.drafts()];
  if (!sequence.away_since || !away.known) return std::nullopt;
  const double away_s = to_seconds(now - *sequence.away_since);
  const double deviation_s = std::max(away.deviation_s, kDeviationMin);
  if (away_s > away.mean_s + 4 * deviation_s) return std::nullopt;
  return std::max(away.mean_s + deviation_s - away_s, deviation_s / 2);
}

double BatchWindow::forward_s(std::int64_t rows) const {
  return forward_.intercept() + forward_.slope() * static_cast<double>(rows);
}

Duration BatchWindow::wait(std::int64_t requests, std::int64_t rows, TimePoint now) const {
  struct Coming {
    double in_s;
    std::int64_t rows;
  };
  std::vector<Coming> coming;
  std::vector<double> away_s;  // times of those present, after their verdicts
  for (const auto& [id, sequence] : sequences_) {
    if (const auto in_s = returns_in(sequence, now)) {
      coming.push_back({*in_s, sequence.rows});
    } else if (!sequence.away_since) {
      away_s.push_back(sequence.away[sequence.drafts()].mean_s);
    }
  }
  std::ranges::sort(coming, {}, &Coming::in_s);
  const double alone_s = forward_s(rows), present = static_cast<double>(requests);
  std::int64_t coming_rows = 0;
  double sequences = present, best = 0, best_s = 0;
  for (const auto& [in_s, more] : coming) {
    if (in_s > alone_s || rows + more > rows_max_) break;
    rows += more;
    coming_rows += more;
    sequences += 1;
    const double later_s = forward_s(coming_rows);
    double apart = present * alone_s + (sequences - present) * (alone_s + later_s);
    for (const double each_s : away_s) apart += std::max(0.0, later_s - each_s);
    const double gain = apart - sequences * (in_s + forward_s(rows));
    if (gain > best) std::tie(best, best_s) = std::pair(gain, in_s);
  }
  return from_seconds(best_s);
}

}  // namespace outrider
