#include "batch/dispatch.h"

#include <algorithm>

namespace outrider {
namespace {
constexpr Duration kWaitFirst = std::chrono::milliseconds(200), kWaitMax = std::chrono::seconds(30);
/// Refusals of many lines within this time count as one.
constexpr Duration kRefusedTogether = std::chrono::seconds(3);
/// Share of a line that a reply adds to the concurrency.
constexpr double kRise = 1.0 / 16;
}  // namespace

void Dispatch::refused(TimePoint now) {
  if (fixed_ || (refused_ && now - *refused_ < kRefusedTogether)) return;
  refused_ = now;
  concurrency_ = std::max(1.0, concurrency_ * 3 / 4);
}

std::optional<std::uint32_t> Dispatch::next(TimePoint now) {
  if (under_way_ >= concurrency() || now < not_before_) return std::nullopt;
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

void Dispatch::done(std::uint32_t line, TimePoint now) {
  --under_way_;
  ++replies_;
  failures_in_row_ = 0;
  last_reply_ = now;
  tries_.erase(line);
  if (!fixed_) concurrency_ = std::min<double>(concurrency_ + kRise, kConcurrencyMax);
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
  // Overload is not the fault of a line.
  const bool too_much = failure == Failure::kTooMuch;
  if (!too_much && (tries.count == 0 || replies_ > tries.replies)) ++tries.count;
  tries.replies = replies_;
  last_failure_ = now;
  if (failures_in_row_ == 0) first_failure_ = now;
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
    refused(now);
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
  later_.push({{}, line});
}

}  // namespace outrider
