#include "batch/dispatch.h"

#include <algorithm>
#include <cmath>

namespace outrider {
namespace {
constexpr Duration kWaitFirst = std::chrono::milliseconds(200), kWaitMax = std::chrono::seconds(30);
/// Refusals of many lines within this time count as one.
constexpr Duration kRefusedTogether = std::chrono::seconds(3);
/// Least gain that makes another number worthwhile.
constexpr double kPays = 1.03;
/// Minimum ratio of remaining lines to the limit of a trial with fewer: at half the speed it costs a twentieth.
constexpr std::size_t kTrialsLeftMin = 20;
/// Fewer lines do not show the speed.
constexpr int kTrialLinesMin = 16;
constexpr double kStrange = 0.3;
constexpr int kStrangeTrialsMax = 3;
/// A server that could use more lines does not show it by itself.
constexpr int kSettledTrialsMax = 20;
}  // namespace

void ConcurrencySearch::sent(std::uint32_t line, TimePoint now) {
  if (!fixed_) under_way_[line] = {now, trial_.number};
}

void ConcurrencySearch::done(std::uint32_t line, std::int64_t tokens, std::size_t left, TimePoint now) {
  const auto found = under_way_.find(line);
  if (found == under_way_.end()) return;
  const Flight flight = found->second;
  const auto beside = static_cast<std::int64_t>(under_way_.size());
  under_way_.erase(found);
  if (flight.trial != trial_.number) return;
  ++trial_.finished;
  trial_.tokens += tokens;
  trial_.lines_beside += beside;
  trial_.flight += now - flight.sent;
  if (trial_.finished < std::max(limit_, kTrialLinesMin) || trial_.flight <= Duration::zero()) return;
  // Little's law: mean lines in progress, each with its rate.
  const double beside_mean = static_cast<double>(trial_.lines_beside) / trial_.finished;
  judge(beside_mean * static_cast<double>(trial_.tokens) / to_seconds(trial_.flight), left);
  begin_trial();
}

void ConcurrencySearch::begin_trial() { trial_ = {.number = trial_.number + 1}; }

void ConcurrencySearch::judge(double rate, std::size_t left) {
  if (phase_ == Phase::kSettled) return judge_settled(rate, left);
  const bool pays = phase_ == Phase::kFirst || rate > kPays * best_rate_;
  if (phase_ == Phase::kFirst) {
    first_limit_ = limit_;
    phase_ = Phase::kUp;
  }
  if (pays) {
    best_limit_ = limit_;
    best_rate_ = rate;
  } else if (phase_ == Phase::kUp && best_limit_ == first_limit_) {
    phase_ = Phase::kDown;
  } else {
    return settle();
  }
  try_next(phase_ == Phase::kUp ? best_limit_ * 2 : best_limit_ / 2, left);
}

void ConcurrencySearch::try_next(int limit, std::size_t left) {
  if (limit > kMax) {
    // The limit is at its maximum: a lower one may be better, unless the first one was lower and worse.
    if (best_limit_ != first_limit_) return settle();
    phase_ = Phase::kDown;
    limit = best_limit_ / 2;
  }
  const bool costs_little = limit > best_limit_ || left >= kTrialsLeftMin * static_cast<std::size_t>(limit);
  if (limit < 1 || !costs_little) return settle();
  limit_ = limit;
}

void ConcurrencySearch::settle() {
  phase_ = Phase::kSettled;
  limit_ = best_limit_;
  strange_trials_ = settled_trials_ = 0;
}

void ConcurrencySearch::judge_settled(double rate, std::size_t left) {
  const bool strange = std::abs(rate - best_rate_) > kStrange * best_rate_;
  strange_trials_ = strange ? strange_trials_ + 1 : 0;
  if (!strange) best_rate_ += (rate - best_rate_) / 4;
  ++settled_trials_;
  const bool long_settled = limit_ < kMax && settled_trials_ >= kSettledTrialsMax;
  if (strange_trials_ < kStrangeTrialsMax && !long_settled) return;
  phase_ = Phase::kFirst;
  judge(rate, left);
}

void ConcurrencySearch::refused(TimePoint now) {
  if (fixed_ || limit_ == 1 || (refused_ && now - *refused_ < kRefusedTogether)) return;
  refused_ = now;
  limit_ = std::max(1, limit_ * 3 / 4);
  best_limit_ = limit_;
  best_rate_ = 0;  // any speed then counts as new, and restarts the search
  settle();
  begin_trial();
}

std::optional<std::uint32_t> Dispatch::next(TimePoint now) {
  if (under_way_ >= search_.limit() || now < not_before_) return std::nullopt;
  std::optional<std::uint32_t> line;
  if (!later_.empty() && later_.top().at <= now) {
    line = later_.top().line;
    later_.pop();
  } else if (next_ < lines_.size()) {
    line = lines_[next_++];
  }
  if (line) {
    ++under_way_;
    search_.sent(*line, now);
  }
  return line;
}

void Dispatch::done(std::uint32_t line, std::int64_t tokens, TimePoint now) {
  --under_way_;
  ++replies_;
  failures_in_row_ = 0;
  last_reply_ = now;
  tries_.erase(line);
  search_.done(line, tokens, lines_.size() - next_ + later_.size(), now);
}

Failure failure_of(int status) {
  switch (status) {
    case 429: return Failure::kTooMuch;
    case 0:
    case 502:  // of a proxy, about the server behind it
    case 503:
    case 504: return Failure::kNobody;
    default: return Failure::kOfLine;
  }
}

bool Dispatch::failed(std::uint32_t line, Failure failure, double chance, TimePoint now) {
  --under_way_;
  search_.gone(line);
  Tries& tries = tries_[line];
  // Overload is not the fault of a line.
  const bool too_much = failure == Failure::kTooMuch;
  if (!too_much && (tries.count == 0 || replies_ > tries.replies)) ++tries.count;
  tries.replies = replies_;
  last_failure_ = now;
  if (failure == Failure::kOfLine) {
    ++tries.answered;
    last_failure_of_line_ = now;
  }
  const bool hopeless = silent(now) && next_ == lines_.size() && tries.answered >= kTriesMax;
  if (tries.count >= kTriesMax || hopeless) {
    tries_.erase(line);
    return false;
  }
  if (too_much) {
    search_.refused(now);
    last_reply_ = now;
  }
  // All lines under way meet the same outage: until one may be sent again, their failures count as one.
  if (failures_in_row_ == 0 || now >= not_before_) ++failures_in_row_;
  const Duration longest = std::min<Duration>(kWaitMax, kWaitFirst * (1 << std::min(failures_in_row_ - 1, 10)));
  const auto wait = std::chrono::duration_cast<Duration>(longest * (0.5 + 0.5 * chance));
  not_before_ = std::max(not_before_, now + wait / 4);
  later_.push({now + wait, line});
  ++retries_;
  return true;
}

void Dispatch::dropped(std::uint32_t line) {
  --under_way_;
  search_.gone(line);
  later_.push({{}, line});
}

}  // namespace outrider
