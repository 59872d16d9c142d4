#include "lab/experiment/cpu_share.h"

#include <signal.h>
#include <sys/prctl.h>

#include <algorithm>
#include <cmath>
#include <stop_token>
#include <utility>

#include "common/base/time.h"

namespace outrider {
namespace {

/// Ended by `stop` after a turn, with no process stopped.
void take_turns(const std::vector<pid_t>& processes, double share, double turn_s, std::stop_token stop) {
  prctl(PR_SET_TIMERSLACK, 1UL);  // otherwise 50 us, a tenth of a turn's part
  const auto send_all = [&](int signal) {
    for (const pid_t process : processes) kill(process, signal);
  };
  const TimePoint start = now();
  Duration ran{};
  while (!stop.stop_requested()) {
    const TimePoint goes_on = now();
    std::this_thread::sleep_until(goes_on + from_seconds(share * turn_s));
    send_all(SIGSTOP);
    ran += now() - goes_on;
    std::this_thread::sleep_until(start + from_seconds(to_seconds(ran) / share));
    send_all(SIGCONT);
  }
}

}  // namespace

CpuShare::CpuShare(std::vector<pid_t> processes, double share) {
  if (processes.empty() || share >= 1) return;
  thread_ = std::jthread(
      [processes = std::move(processes), share](std::stop_token stop) { take_turns(processes, share, kTurnS, stop); });
}

double CpuShare::mean_s(double work_s, double share) {
  // Work that begins while the process runs is stopped once for each whole part that it needs, and once more with the
  // probability that its rest meets the end of one. Otherwise it first waits for half a pause, and begins with a whole
  // part.
  const double part_s = share * kTurnS, pause_s = kTurnS - part_s;
  const double parts = work_s / part_s;
  return work_s + pause_s * (share * parts + (1 - share) * (0.5 + std::max(0.0, std::ceil(parts) - 1)));
}

}  // namespace outrider
