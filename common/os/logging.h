#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include <fmt/core.h>

#include "common/base/time.h"
#include "common/base/token_bucket.h"

namespace outrider {

/// Sends logs to stderr, one line each, prefixed with `name` (the role). Level from OUTRIDER_LOG (info, warn, error,
/// off), else `level`; OUTRIDER_LOG_FORMAT=json makes each line a JSON object (json_lines.h). Throws for another
/// level or format.
void init_logging(const std::string& name, const std::string& level);

enum class LogLevel { kInfo, kWarn, kError };

/// Logs one line, if its level is enabled. spdlog is used in logging.cc only: each file with it compiles all of fmt.
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

/// Repeats a message each minute while its cause lasts.
class Reminder {
 public:
  /// @param text  the current message; empty: none @return true if it is to be logged now
  bool is_due(const std::string& text, TimePoint now);

 private:
  std::string last_text_;
  TimePoint again_{};
};

/// Admits one event per second, or at the given rate, and counts the dropped ones: for logs that a peer can provoke.
class RateLimit {
 public:
  explicit RateLimit(TokenBucket bucket = {std::chrono::seconds(1), 1}) : bucket_(bucket) {}
  /// @return the text to append to the line if it is to be logged now: the number dropped since the last one
  std::optional<std::string> pass(TimePoint now);

 private:
  TokenBucket bucket_;
  std::int64_t held_back_ = 0;
};

}  // namespace outrider
