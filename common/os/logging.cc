#include "common/os/logging.h"

#include <poll.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string_view>
#include <utility>

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include "common/base/utf8.h"
#include "common/os/json_lines.h"

namespace outrider {
namespace {

/// Writes lines to stderr without waiting for its reader: if a pipe is full, or a terminal stopped, lines are dropped
/// and later counted. spdlog's asynchronous logger is not used: its thread would wait for the reader instead, and the
/// program's end for it.
class StderrSink final : public spdlog::sinks::base_sink<std::mutex> {
 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    if (lost_ > 0 && write(fmt::format("({} lines of this log were lost: nobody read them)\n", lost_))) lost_ = 0;
    if (lost_ > 0 || !write({line.data(), line.size()})) ++lost_;
  }
  void flush_() override {}

 private:
  /// A pipe with any room accepts PIPE_BUF bytes atomically; a longer line is cut.
  static bool write(std::string_view line) {
    pollfd error{STDERR_FILENO, POLLOUT, 0};
    if (::poll(&error, 1, 0) != 1 || (error.revents & POLLOUT) == 0) return false;
    std::string cut;
    if (line.size() > PIPE_BUF) line = cut = std::string(line.substr(0, PIPE_BUF - 5)) + "...\n";
    return ::write(STDERR_FILENO, line.data(), line.size()) >= 0;
  }

  std::int64_t lost_ = 0;
};

/// Formats each line as a JSON object that a pipe accepts atomically.
class JsonLines final : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& line) override {
    spdlog::memory_buf_t time;
    clock_.format(message, time);
    const spdlog::string_view_t level = spdlog::level::to_string_view(message.level);
    const std::string json =
        json_log_line({time.data(), time.size()}, {message.logger_name.data(), message.logger_name.size()},
                      {level.data(), level.size()}, {message.payload.data(), message.payload.size()}, PIPE_BUF - 1);
    line.append(json.data(), json.data() + json.size());
    line.push_back('\n');
  }
  std::unique_ptr<spdlog::formatter> clone() const override { return std::make_unique<JsonLines>(); }

 private:
  spdlog::pattern_formatter clock_{"%Y-%m-%dT%H:%M:%S.%eZ", spdlog::pattern_time_type::utc, ""};
};

}  // namespace

void init_logging(const std::string& name, const std::string& level) {
  auto logger = std::make_shared<spdlog::logger>(name, std::make_shared<StderrSink>());
  const char* const of_environment = std::getenv("OUTRIDER_LOG");
  const std::string wanted = of_environment != nullptr ? of_environment : level;
  logger->set_level(spdlog::level::from_str(wanted));
  if (logger->level() == spdlog::level::off && wanted != "off")  // spdlog's result for any other word
    throw std::runtime_error(fmt::format("OUTRIDER_LOG is '{}', wanted info, warn, error or off", wanted));
  logger->set_pattern("%H:%M:%S.%e %n %l: %v");
  const char* const format = std::getenv("OUTRIDER_LOG_FORMAT");
  const std::string_view form = format != nullptr ? format : "text";
  if (form != "text" && form != "json")
    throw std::runtime_error(fmt::format("OUTRIDER_LOG_FORMAT is '{}', wanted text or json", form));
  if (form == "json") logger->set_formatter(std::make_unique<JsonLines>());
  spdlog::set_default_logger(std::move(logger));
}

void log_values(LogLevel level, fmt::string_view format, fmt::format_args values) {
  constexpr spdlog::level::level_enum kLevels[] = {spdlog::level::info, spdlog::level::warn, spdlog::level::err};
  const spdlog::level::level_enum wanted = kLevels[static_cast<std::size_t>(level)];
  spdlog::logger& logger = *spdlog::default_logger_raw();
  if (logger.should_log(wanted)) logger.log(wanted, printable(fmt::vformat(format, values)));
}

bool Reminder::is_due(const std::string& text, TimePoint now) {
  if (text == last_text_ && now < again_) return false;
  last_text_ = text;
  again_ = now + std::chrono::minutes(1);
  return !text.empty();
}

std::optional<std::string> RateLimit::pass(TimePoint now) {
  if (!bucket_.pass(now)) return ++held_back_, std::nullopt;
  const std::int64_t since = std::exchange(held_back_, 0);
  return since > 0 ? fmt::format(" ({} more held back)", since) : "";
}

}  // namespace outrider
