#pragma once

#include <cstdint>
#include <optional>
#include <queue>
#include <unordered_map>
#include <vector>

#include "common/base/time.h"

namespace outrider {

/// How many lines are to be under way, for the most tokens per second of all. What a server does not work on waits in
/// its line and costs nothing, and a batch that is not full does: so it begins with as many as may be. Of a job that is
/// long enough for trials to cost little, it halves while that pays. After a refusal it takes fewer, and more again
/// while that pays; and it looks again now and then, and once the speed has been another one for long. Pure: it is told
/// what happens and when.
class ConcurrencySearch {
 public:
  static constexpr int kMax = 256;

  /// @param fixed  0: it is searched for.
  explicit ConcurrencySearch(int fixed = 0) : limit_(fixed == 0 ? kMax : fixed), fixed_(fixed != 0) {}
  int limit() const { return limit_; }

  void sent(std::uint32_t line, TimePoint now);
  /// It has its reply, of so many tokens. @param left  lines that are yet to be sent
  void done(std::uint32_t line, std::int64_t tokens, std::size_t left, TimePoint now);
  /// It has none, and is not under way any more.
  void gone(std::uint32_t line) { under_way_.erase(line); }
  /// The server has too much to do.
  void refused(TimePoint now);

 private:
  enum class Phase { kFirst, kUp, kDown, kSettled };
  struct Flight {
    TimePoint sent;
    int trial;
  };

  /// It counts the lines that were sent under the present limit_ and have their replies.
  struct Trial {
    int number = 0;
    int finished = 0;
    std::int64_t tokens = 0, lines_beside = 0;  ///< lines under way when each was done, itself among them
    Duration flight{};
  };

  /// @param rate  tokens per second with limit_ lines under way
  void judge(double rate, std::size_t left);
  void judge_settled(double rate, std::size_t left);
  void try_next(int limit, std::size_t left);
  void settle();
  void begin_trial();

  Phase phase_ = Phase::kFirst;
  int limit_;
  const bool fixed_;
  int best_limit_ = 0, first_limit_ = 0;  ///< of this search
  double best_rate_ = 0;
  std::unordered_map<std::uint32_t, Flight> under_way_ = {};
  Trial trial_ = {};
  int strange_trials_ = 0;  ///< in a row, of another speed than the one that was settled for
  int settled_trials_ = 0;
  std::optional<TimePoint> refused_ = {};
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
