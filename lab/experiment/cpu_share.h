#pragma once

#include <sys/types.h>

#include <thread>
#include <vector>

namespace outrider {

/// Processes that may run for a share of the time only: all are stopped (SIGSTOP) for the rest of each turn, and go on
/// when this object ends. It wants no rights, unlike a cgroup's cpu.max, and slows a process that is mostly idle too:
/// it is a slower host and not a budget. The share is kept over all turns together, however late this process is woken.
class CpuShare {
 public:
  /// @param processes  children that nobody reaps before this object ends. @param share  above 0, at most 1
  CpuShare(std::vector<pid_t> processes, double share);

  /// @return the mean time of work of `work_s` seconds that begins at any moment of a turn.
  static double mean_s(double work_s, double share);

 private:
  static constexpr double kTurnS = 1e-3;  ///< short beside a draft of a published model

  std::jthread thread_;
};

}  // namespace outrider
