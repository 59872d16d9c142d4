#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>

namespace outrider {

using Duration = std::chrono::nanoseconds;

/// Time since an arbitrary start. The protocol receives it from callers and never reads a clock.
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, Duration>;

/// The real clock, for nodes, engines and benchmarks.
inline TimePoint now() { return std::chrono::time_point_cast<Duration>(std::chrono::steady_clock::now()); }

/// The real clock, except that it stops while its thread's loop does not run, so that no time-out counts a pause of our
/// own (SIGSTOP, a debugger, a paused container) as another's silence.
class LoopClock {
 public:
  explicit LoopClock(TimePoint start = outrider::now()) : last_(start) {}
  TimePoint now() { return at(outrider::now()); }
  /// Returns its time at a time of the real clock, which must not go back.
  TimePoint at(TimePoint real) {
    paused_ += std::max(real - last_ - kStepMax, Duration::zero());
    last_ = real;
    return real - paused_;
  }

 private:
  /// Largest step between two reads. Shorter than every time-out of the protocol, so that messages that arrived during
  /// a pause are read first.
  static constexpr Duration kStepMax = std::chrono::milliseconds(400);
  TimePoint last_;
  Duration paused_{};
};

/// Time of the wall clock, for people and other programs.
inline std::int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

inline double to_ms(Duration d) { return std::chrono::duration<double, std::milli>(d).count(); }
inline double to_seconds(Duration d) { return std::chrono::duration<double>(d).count(); }
inline Duration from_seconds(double seconds) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

}  // namespace outrider
