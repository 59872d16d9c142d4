#include "common/os/added_time.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

namespace outrider {

Duration added_time(std::span<const double> us, std::int64_t rows) {
  if (us.empty()) return {};
  if (us.size() == 1) return from_seconds(us.front() / 1e6);
  std::size_t to = 1;
  while (to + 1 < us.size() && std::int64_t{1} << to < rows) ++to;
  const double before = static_cast<double>(std::int64_t{1} << (to - 1));
  const double slope = (us[to] - us[to - 1]) / before;  // the next number of rows is twice as many
  return from_seconds((us[to - 1] + slope * (static_cast<double>(rows) - before)) / 1e6);
}

void add_time(std::span<const double> us, std::int64_t rows, const std::function<void()>& between_steps) {
  static std::atomic<int> passes = 0;
  ++passes;
  TimePoint last = now();
  for (Duration left = added_time(us, rows); left > Duration::zero();) {
    const int sharing = passes;
    std::this_thread::sleep_for(std::min<Duration>(left * sharing, std::chrono::milliseconds(2)));
    const TimePoint time = now();
    left -= (time - last) / sharing;
    last = time;
    between_steps();
  }
  --passes;
}

}  // namespace outrider
