#include "common/logging/logging.h"

#include <cstdlib>

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

namespace outrider {

void init_logging(const std::string& name, const std::string& level) {
  auto logger = std::make_shared<spdlog::logger>(name, std::make_shared<spdlog::sinks::stderr_sink_mt>());
  const char* wanted = std::getenv("OUTRIDER_LOG");
  logger->set_level(spdlog::level::from_str(wanted != nullptr ? wanted : level));
  logger->set_pattern("%H:%M:%S.%e %n %l: %v");
  spdlog::set_default_logger(std::move(logger));
}

bool RateLimit::pass(TimePoint now, std::int64_t* suppressed) {
  if (now < next_) {
    ++suppressed_;
    return false;
  }
  next_ = now + std::chrono::seconds(1);
  *suppressed = suppressed_;
  suppressed_ = 0;
  return true;
}

}  // namespace outrider
