#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include <fmt/core.h>

#include "common/base/time.h"
#include "common/base/token_bucket.h"

namespace outrider {

/// Sends logs to stderr, one line each, with `name` (the role) in front. Level from OUTRIDER_LOG
/// (debug, info, warn, error), else `level`; OUTRIDER_LOG_FORMAT=json makes each line a JSON object (json_lines.h).
/// Throws for another format.
void init_logging(const std::string& name, const std::string& level);

enum class LogLevel { kInfo, kWarn, kError };

/// One line, if its level is wanted. spdlog stays in logging.cc: a file that calls it by itself compiles all of fmt.
void log_values(LogLevel level, fmt::string_view format, fmt::format_args values);
template <typename... T>
void log_at(LogLevel level, fmt::format_string<T...> format, T&&... values) {
  log_values(level, format, fmt::make_format_args(values...));
}
template <typename... T>
void log_info(fmt::format_string<T...> format, T&&... values) {
  log_values(LogLevel::kInfo, format, fmt::make_format_args(values...));
}
template <typename... T>
void log_warn(fmt::format_string<T...> format, T&&... values) {
  log_values(LogLevel::kWarn, format, fmt::make_format_args(values...));
}
template <typename... T>
void log_error(fmt::format_string<T...> format, T&&... values) {
  log_values(LogLevel::kError, format, fmt::make_format_args(values...));
}

/// What is said when it begins, and again each minute while it lasts.
class Reminder {
 public:
  /// @param text  what there is to say now; empty: nothing. @return whether to say it
  bool is_due(const std::string& text, TimePoint now);

 private:
  std::string said_;
  TimePoint again_{};
};

/// Lets one event per second through, or as many as said, and says how many it held back: for logs that a peer can
/// provoke.
class RateLimit {
 public:
  explicit RateLimit(TokenBucket bucket = {std::chrono::seconds(1), 1}) : bucket_(bucket) {}
  /// @return what to add to the line if it is to be logged now: how many were held back since the last one.
  std::optional<std::string> pass(TimePoint now);

 private:
  TokenBucket bucket_;
  std::int64_t held_back_ = 0;
};

}  // namespace outrider
