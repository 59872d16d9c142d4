#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "common/base/time.h"

namespace outrider {

/// Sends logs to stderr, one line each, with `name` (the role) in front. Level from OUTRIDER_LOG
/// (debug, info, warn, error), else `level`; OUTRIDER_LOG_FORMAT=json makes each line a JSON object (json_lines.h).
/// Throws for another format.
void init_logging(const std::string& name, const std::string& level);

/// Lets one event per second through, and says how many it held back: for logs that a peer can provoke.
class RateLimit {
 public:
  /// @return whether to log now; then *suppressed is how many were held back since.
  bool pass(TimePoint now, std::int64_t* suppressed);

 private:
  TimePoint next_{};
  std::int64_t suppressed_ = 0;
};

}  // namespace outrider
