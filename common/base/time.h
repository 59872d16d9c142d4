#pragma once

#include <chrono>

namespace outrider {

using Duration = std::chrono::nanoseconds;

/// Time since an arbitrary start. The protocol is handed it and never reads a clock itself.
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;

/// The real clock, for nodes, engines and benchmarks.
inline TimePoint now() {
  return std::chrono::time_point_cast<Duration>(std::chrono::steady_clock::now());
}

inline double to_ms(Duration d) { return std::chrono::duration<double, std::milli>(d).count(); }
inline double to_seconds(Duration d) { return std::chrono::duration<double>(d).count(); }

}  // namespace outrider
