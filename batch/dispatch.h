#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <queue>
#include <unordered_map>
#include <vector>

#include "common/base/time.h"

namespace outrider {

/// Class of a failure that may pass.
enum class Failure {
  kOfLine,   ///< the server answered, perhaps about the line
  kNobody,   ///< no server answered: an outage
  kTooMuch,  ///< the server is overloaded
};
/// @param status  HTTP's, of a reply that may change; 0: there was none
Failure failure_of(int status);

/// Chooses the next line, and decides about failed ones. Pure: it reads no clock. One thread at a time.
class Dispatch {
 public:
  static constexpr int kTriesMax = 8;
  /// Time of nothing but failures after which the job ends for now, or gives up its last lines.
  static constexpr Duration kSilenceMax = std::chrono::minutes(10);

  /// Lines in progress when their number is not fixed, until the server refuses one. Lines that a server does not work
  /// on yet wait in its queue at no cost, while a batch that is not full costs speed.
  static constexpr int kConcurrencyMax = 256;

  /// @param concurrency  0: kConcurrencyMax; a refusal takes a quarter away, and replies slowly restore it
  Dispatch(std::vector<std::uint32_t> lines, int concurrency, TimePoint now)
      : lines_(std::move(lines)),
        fixed_(concurrency != 0),
        concurrency_(fixed_ ? concurrency : kConcurrencyMax),
        last_reply_(now) {}

  /// Returns the line to send, which is then in progress; none at present.
  std::optional<std::uint32_t> next(TimePoint now);
  /// Reports a line's final result, good or bad.
  void done(std::uint32_t line, TimePoint now);
  /// Reports a failure that may pass. It counts against the line only if other lines got results meanwhile: otherwise
  /// the server may be at fault. If every remaining line has failed, the cause is unknown: a line that the server has
  /// answered kTriesMax times with a failure is then given up after kSilenceMax of nothing but failures.
  /// @param chance  in [0, 1), for the wait
  /// @return true if it will be retried; else the caller finishes it, as after done()
  bool failed(std::uint32_t line, Failure failure, double chance, TimePoint now);
  /// Reports a line that was cut off, and is not wanted any more.
  void dropped(std::uint32_t line);

  int under_way() const { return under_way_; }
  int concurrency() const { return static_cast<int>(concurrency_); }
  std::int64_t retries() const { return retries_; }
  /// Returns true if a line still failed after kSilenceMax of nothing but failures, while lines are unsent or
  /// without any answer. Last lines that get only failures are given up by failed(). A line in progress may take as
  /// long as it needs: a server that is gone fails it.
  bool outage() const {
    return silent(last_failure_) && (next_ < lines_.size() || last_failure_ - last_failure_of_line_ > kSilenceMax);
  }

 private:
  struct Tries {
    int count = 0;             ///< failures that count
    int answered = 0;          ///< answered by the server
    std::int64_t replies = 0;  ///< replies of all lines at the last failure
  };
  struct Later {
    TimePoint at;
    std::uint32_t line;
    bool operator>(const Later& other) const { return std::pair(at, line) > std::pair(other.at, other.line); }
  };

  void refused(TimePoint now);
  /// Returns true after kSilenceMax of nothing but failures: a line in flight may be silent for longer.
  bool silent(TimePoint now) const { return now - std::max(last_reply_, first_failure_) > kSilenceMax; }

  const std::vector<std::uint32_t> lines_;
  const bool fixed_;
  double concurrency_;
  std::optional<TimePoint> refused_ = {};
  std::size_t next_ = 0;  ///< index into lines_
  std::priority_queue<Later, std::vector<Later>, std::greater<>> later_;
  std::unordered_map<std::uint32_t, Tries> tries_;  ///< of failed lines
  int under_way_ = 0, failures_in_row_ = 0;
  std::int64_t retries_ = 0, replies_ = 0;
  TimePoint not_before_{}, last_reply_, first_failure_{}, last_failure_{}, last_failure_of_line_{};
};

}  // namespace outrider
