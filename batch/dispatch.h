#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <queue>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/base/time.h"

namespace outrider {

/// How many lines are to be under way: doubles while that pays, goes back to the smallest number that is as good as
/// the best, and looks again when the speed has changed for long. Pure: it is told what happens and when.
class ConcurrencySearch {
 public:
  static constexpr int kMin = 4, kMax = 256;

  /// @param fixed  0: it is searched for.
  explicit ConcurrencySearch(int fixed = 0)
      : searching_(fixed == 0), limit_(fixed == 0 ? kMin : fixed), fixed_(fixed != 0) {}
  int limit() const { return limit_; }
  /// A line has its reply, of so many tokens.
  void done(std::int64_t tokens, TimePoint now);
  /// The server has too much to do.
  void refused(TimePoint now);

 private:
  void begin_window(TimePoint now);
  void judge(double rate);
  void settle();

  bool searching_;
  int limit_;
  const bool fixed_;
  std::map<int, double> rates_ = {};  ///< tokens per second, by number of lines under way
  std::optional<TimePoint> window_;   ///< its beginning; none: lines of the old number are still under way
  int finished_ = 0;                  ///< lines, in the window or before it
  std::int64_t tokens_ = 0;           ///< in the window
  int strange_windows_ = 0;           ///< in a row, of another speed than the one that was settled for
};

/// Why a line that may go better another time has no result.
enum class Failure {
  kOfLine,   ///< the server has answered, and what it says may be about the line
  kNobody,   ///< nobody has answered who could: an outage
  kTooMuch,  ///< the server has too much to do
};
/// @param status  of HTTP, of a reply that may be another one later; 0: there was none
Failure failure_of(int status);

/// Which line is sent next, and what becomes of one that failed. Pure; one thread at a time.
class Dispatch {
 public:
  static constexpr int kTriesMax = 8;
  /// Without a single result for so long the job gives up for now, or on its last lines.
  static constexpr Duration kSilenceMax = std::chrono::minutes(10);

  Dispatch(std::vector<std::uint32_t> lines, int concurrency, TimePoint now)
      : lines_(std::move(lines)), search_(concurrency), last_reply_(now) {}

  /// The line to send, which is under way then; none if there is none now.
  std::optional<std::uint32_t> next(TimePoint now);
  /// It has its result, good or bad.
  void done(std::uint32_t line, std::int64_t tokens, TimePoint now);
  /// It may go better another time. A failure counts against the line only if others got results meanwhile: else it may
  /// be the server that fails. Where no line is left that has not failed, nobody could tell: then a line that the
  /// server has answered kTriesMax times with a failure, without a result for any line in kSilenceMax, is given up too.
  /// @param chance  in [0, 1), for the wait.
  /// @return whether it will be tried again; else it is the caller's, as if done.
  bool failed(std::uint32_t line, Failure failure, double chance, TimePoint now);
  /// It was cut off: nobody waits for it any more.
  void dropped(std::uint32_t line);

  int under_way() const { return under_way_; }
  int concurrency() const { return search_.limit(); }
  std::int64_t retries() const { return retries_; }
  /// Nobody has answered for kSilenceMax; lines that are answered with failures alone are failed()'s to give up.
  bool outage(TimePoint now) const {
    return silent(now) && (next_ < lines_.size() || now - last_failure_of_line_ > kSilenceMax);
  }

 private:
  struct Tries {
    int count = 0;             ///< of those that count
    int answered = 0;          ///< by the server
    std::int64_t replies = 0;  ///< of all lines when it failed last
  };
  struct Later {
    TimePoint at;
    std::uint32_t line;
    bool operator>(const Later& other) const { return std::pair(at, line) > std::pair(other.at, other.line); }
  };

  bool silent(TimePoint now) const { return now - last_reply_ > kSilenceMax; }

  const std::vector<std::uint32_t> lines_;
  ConcurrencySearch search_;
  std::size_t next_ = 0;  ///< of lines_
  std::priority_queue<Later, std::vector<Later>, std::greater<>> later_;
  std::unordered_map<std::uint32_t, Tries> tries_;  ///< of lines that have failed
  int under_way_ = 0, failures_in_row_ = 0;
  std::int64_t retries_ = 0, replies_ = 0;
  TimePoint not_before_{}, last_reply_, last_failure_of_line_{};
};

}  // namespace outrider
