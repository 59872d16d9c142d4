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

void BatchWindow::Absences::observe(double seconds) {
  if (!std::exchange(known, true)) {
    mean_s = seconds;
    deviation_s = seconds / 2;
    return;
  }
  deviation_s += (std::abs(seconds - mean_s) - deviation_s) / 4;
  mean_s += (seconds - mean_s) / 8;
}

void BatchWindow::forward_ended(std::int64_t rows, TimePoint now) {
  if (!forward_since_) return;
  const double took_s = to_seconds(now - *std::exchange(forward_since_, std::nullopt));
  forwards_s_ += took_s;
  if (rows > 0) forward_.observe(static_cast<double>(rows), took_s);
}

double BatchWindow::busy_s(TimePoint now) const {
  return forwards_s_ + (forward_since_ ? to_seconds(now - *forward_since_) : 0);
}

BatchWindow::Elapsed BatchWindow::elapsed(const Sequence& sequence, TimePoint now) const {
  const double away_s = to_seconds(now - *sequence.away_since);
  const double busy = std::clamp(busy_s(now) - sequence.busy_before_s, 0.0, away_s);
  return {.idle_s = away_s - busy, .busy_s = busy};
}

double BatchWindow::slowdown() const {
  constexpr int kTrial = 32;
  return slowdown_.factor(drafted_ < kTrial ? 2 : 1);
}

const BatchWindow::Absences& BatchWindow::absences(const Sequence& sequence) const {
  const Absences& own = sequence.away[sequence.drafts()];
  return own.known ? own : all_[sequence.drafts()];
}

void BatchWindow::left(SessionId id, TimePoint now) {
  const auto [entry, is_new] = sequences_.try_emplace(id);
  Sequence& sequence = entry->second;
  if (is_new) sequence.rows = last_rows_;
  sequence.away_since = now;
  sequence.busy_before_s = busy_s(now);
}

void BatchWindow::returned(SessionId id, std::int64_t rows, TimePoint now) {
  Sequence& sequence = sequences_[id];
  sequence.rows = last_rows_ = rows;
  if (!sequence.away_since) return;
  const Elapsed time = elapsed(sequence, now);
  sequence.away_since.reset();
  const double total_s = time.idle_s + time.busy_s;
  drafted_ += rows > 1 ? 1 : 0;
  if (rows > 1 && time.busy_s < total_s / 4) slowdown_.observe_apart(total_s);
  if (rows > 1 && time.idle_s < total_s / 4) slowdown_.observe_beside(total_s);
  Absences& own = sequence.away[sequence.drafts()];
  if (!own.known) own = all_[sequence.drafts()];
  own.observe(idle_s(time));
  all_[sequence.drafts()].observe(idle_s(time));
}

std::optional<double> BatchWindow::returns_in(const Sequence& sequence, TimePoint now) const {
  const Absences& away = absences(sequence);
  if (!sequence.away_since || !away.known) return std::nullopt;
  const double away_s = idle_s(elapsed(sequence, now));
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
      away_s.push_back(absences(sequence).mean_s);
    }
  }
  std::ranges::sort(coming, {}, &Coming::in_s);
  // Drafts and a forward beside them share cores or memory: the forward loses as much time as the drafts.
  const double slowdown = this->slowdown(), slowed = slowdown - 1;
  const double longest_s = away_s.empty() ? 0 : std::ranges::max(away_s);
  const double forward_alone_s = forward_s(rows), present = static_cast<double>(requests);
  std::int64_t coming_rows = 0;
  double sequences = present, best = 0, best_s = 0;
  // Each turn adds the sequence that returns next, and compares the sums of the times at which all are done: without a
  // wait (`apart`), and with a wait until that return. Drafts that begin beside a forward lengthen it, see the header.
  for (const auto& [in_s, more] : coming) {
    if (in_s > forward_alone_s || rows + more > rows_max_) break;
    rows += more;
    coming_rows += more;
    sequences += 1;
    const double alone_s = forward_alone_s + slowed * in_s, later_s = forward_s(coming_rows) + slowed * longest_s;
    double apart = present * alone_s + (sequences - present) * (alone_s + later_s);
    for (const double each_s : away_s) apart += std::max(0.0, later_s - each_s * slowdown);
    const double gain = apart - sequences * (in_s + forward_s(rows));
    if (gain > best) std::tie(best, best_s) = std::pair(gain, in_s);
  }
  return from_seconds(best_s);
}

}  // namespace outrider
