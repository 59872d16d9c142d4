#include "batch/dispatch.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace outrider {
namespace {
constexpr Duration kWindowMin = std::chrono::seconds(3);
constexpr Duration kWaitFirst = std::chrono::milliseconds(200), kWaitMax = std::chrono::seconds(30);
/// A step up pays if it brings so much; a number that is so near to the best is as good.
constexpr double kPays = 1.05, kAsGood = 0.97;
constexpr double kStrange = 0.3;
constexpr int kStrangeWindowsMax = 3;
}  // namespace

void ConcurrencySearch::begin_window(TimePoint now) {
  window_ = now;
  finished_ = 0;
  tokens_ = 0;
}

void ConcurrencySearch::done(std::int64_t tokens, TimePoint now) {
  if (fixed_) return;
  ++finished_;
  if (!window_) {
    if (finished_ >= limit_) begin_window(now);
    return;
  }
  tokens_ += tokens;
  if (finished_ < 2 * limit_ || now - *window_ < kWindowMin) return;
  judge(static_cast<double>(tokens_) / to_seconds(now - *window_));
  if (window_) begin_window(now);
}

void ConcurrencySearch::judge(double rate) {
  if (!searching_) {
    double& settled = rates_[limit_];
    const bool strange = std::abs(rate - settled) > kStrange * settled;
    strange_windows_ = strange ? strange_windows_ + 1 : 0;
    if (strange_windows_ < kStrangeWindowsMax) {
      if (!strange) settled += (rate - settled) / 4;
      return;
    }
    searching_ = true;
    rates_.clear();
    limit_ = std::max(kMin, limit_ / 2);
  } else {
    const double before = rates_.empty() ? 0 : rates_.rbegin()->second;
    rates_[limit_] = rate;
    if (rate > kPays * before && limit_ < kMax)
      limit_ = std::min(2 * limit_, kMax);
    else
      settle();
  }
  window_.reset();
  finished_ = 0;
}

void ConcurrencySearch::settle() {
  searching_ = false;
  strange_windows_ = 0;
  const double best = std::ranges::max_element(rates_, {}, [](const auto& rate) { return rate.second; })->second;
  limit_ = std::ranges::find_if(rates_, [&](const auto& rate) { return rate.second >= kAsGood * best; })->first;
}

void ConcurrencySearch::refused(TimePoint now) {
  if (fixed_ || limit_ == 1) return;
  // At most once a window: many lines are refused together.
  if (window_ && now - *window_ < kWindowMin) return;
  limit_ = std::max(1, limit_ * 3 / 4);
  searching_ = false;
  rates_.clear();
  begin_window(now);
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
  if (line) ++under_way_;
  return line;
}

void Dispatch::done(std::uint32_t line, std::int64_t tokens, TimePoint now) {
  --under_way_;
  ++replies_;
  failures_in_row_ = 0;
  last_reply_ = now;
  tries_.erase(line);
  search_.done(tokens, now);
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
  Tries& tries = tries_[line];
  // Having too much to do is not the fault of a line.
  const bool too_much = failure == Failure::kTooMuch;
  if (!too_much && (tries.count == 0 || replies_ > tries.replies)) ++tries.count;
  tries.replies = replies_;
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
  const Duration longest = std::min<Duration>(kWaitMax, kWaitFirst * (1 << std::min(failures_in_row_++, 10)));
  const auto wait = std::chrono::duration_cast<Duration>(longest * (0.5 + 0.5 * chance));
  not_before_ = std::max(not_before_, now + wait / 4);
  later_.push({now + wait, line});
  ++retries_;
  return true;
}

void Dispatch::dropped(std::uint32_t line) {
  --under_way_;
  later_.push({{}, line});
}

}  // namespace outrider
