#pragma once

#include <sys/types.h>

#include <thread>
#include <vector>

namespace outrider {

/// Limits processes to a share of the time: all are stopped (SIGSTOP) for the rest of each turn, and continued when
/// this object ends. Unlike a cgroup's cpu.max it needs no rights, and slows a mostly idle process too: it simulates a
/// slower host, not a budget. The share is kept over all turns together, however late this process is woken.
class CpuShare {
 public:
  /// @param processes  children that are not reaped before this object ends @param share  above 0, at most 1
  CpuShare(std::vector<pid_t> processes, double share);

  /// @return the mean time of work of `work_s` seconds that begins at a random moment of a turn
  static double mean_s(double work_s, double share);

 private:
  static constexpr double kTurnS = 1e-3;  ///< short compared with a draft of a published model

  std::jthread thread_;
};

}  // namespace outrider
