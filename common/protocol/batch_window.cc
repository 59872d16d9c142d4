#include "common/protocol/batch_window.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>
#include <vector>

namespace outrider {

namespace {

/// No way is more regular than this, however its last times agreed (RFC 6298's clock granularity).
constexpr double kDeviationMin = 50e-6;

/// Waiting must promise so much more than beginning: forecasts err, and texts that change their pace meet nobody.
constexpr double kBetter = 1.02;

}  // namespace

void BatchWindow::left(SessionId id, TimePoint now) {
  Text& text = texts_[id];
  text.away = true;
  text.left_at = now;
}

void BatchWindow::came_back(SessionId id, std::int64_t rows, TimePoint now) {
  Text& text = texts_[id];
  text.rows = rows;
  if (!std::exchange(text.away, false)) return;
  const double away_s = to_seconds(now - text.left_at);
  double company = 0;
  if (text.drafts()) {
    for (const auto& [other_id, other] : texts_) company += other.left_at == text.left_at && other.drafts() ? 1 : 0;
    drafting_.observe(company, away_s);
  }
  Absence& absence = text.absence();
  if (!std::exchange(absence.known, true)) {
    absence.mean_s = away_s;
    absence.deviation_s = away_s / 2;
    absence.company = company;
    return;
  }
  absence.company += (company - absence.company) / 8;
  absence.deviation_s += (std::abs(away_s - absence.mean_s) - absence.deviation_s) / 4;
  absence.mean_s += (away_s - absence.mean_s) / 8;
}

void BatchWindow::observe_forward(std::int64_t rows, Duration took) {
  forward_.observe(static_cast<double>(rows), to_seconds(took));
}

std::optional<double> BatchWindow::back_in(const Text& text, TimePoint now) {
  const Absence& absence = text.absence();
  if (!text.away || !absence.known) return std::nullopt;
  const double away_s = to_seconds(now - text.left_at);
  const double deviation_s = std::max(absence.deviation_s, kDeviationMin);
  if (away_s > absence.mean_s + 4 * deviation_s) return std::nullopt;
  return std::max(absence.mean_s + deviation_s - away_s, deviation_s / 2);
}

BatchWindow::Group BatchWindow::Group::operator+(const Group& other) const {
  return {texts + other.texts, drafting + other.drafting, rows + other.rows, std::max(own_s, other.own_s),
          std::max(in_s, other.in_s)};
}

double BatchWindow::forward_s(std::int64_t rows) const {
  const std::int64_t forwards = (rows + rows_max_ - 1) / rows_max_;
  return forward_.intercept() * static_cast<double>(forwards) + forward_.slope() * static_cast<double>(rows);
}

double BatchWindow::rounds_per_s(std::span<const Group> groups) const {
  double turns_s = 0, rounds = 0;
  for (const Group& group : groups) turns_s += forward_s(group.rows);
  for (const Group& group : groups) {
    const double away_s = group.own_s + drafting_.slope() * group.drafting;
    rounds += group.texts / std::max(turns_s, away_s + forward_s(group.rows));
  }
  return rounds;
}

Duration BatchWindow::wait(std::int64_t requests, std::int64_t rows, TimePoint now) const {
  std::map<TimePoint, Group> away;
  Group here = {};
  for (const auto& [id, text] : texts_) {
    const Absence& absence = text.absence();
    const std::optional<double> in_s = back_in(text, now);
    if (text.away && !in_s) continue;
    Group& group = text.away ? away[text.left_at] : here;
    group = group + Group{.texts = 1,
                          .drafting = text.drafts() ? 1.0 : 0.0,
                          .rows = text.rows,
                          .own_s = absence.mean_s - drafting_.slope() * absence.company,
                          .in_s = in_s.value_or(0)};
  }
  here.texts = static_cast<double>(requests);
  here.rows = rows;
  std::vector<Group> groups = {here};
  for (const auto& [left_at, group] : away) groups.push_back(group);
  std::ranges::sort(groups, {}, &Group::in_s);
  double best = kBetter * rounds_per_s(groups), best_s = 0;
  // Who comes when this forward would have ended misses nothing by it.
  for (std::size_t i = 1; i < groups.size() && groups[i].in_s < forward_s(rows); ++i) {
    groups[i] = groups[i - 1] + groups[i];
    if (groups[i].rows > rows_max_) break;
    const double rate = rounds_per_s(std::span(groups).subspan(i));
    if (rate > best) std::tie(best, best_s) = std::pair(rate, groups[i].in_s);
  }
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(best_s));
}

}  // namespace outrider
