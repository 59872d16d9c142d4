#pragma once

#include <optional>
#include <string>

#include "lab/experiment/plan.h"

namespace outrider {

/// The kernel counts these, in ticks of all cores together.
struct CpuTicks {
  double busy = 0, idle = 0, steal = 0;
  double ours = 0;  ///< this process's and its children's

  /// It reads this machine's; all are 0 where /proc cannot be read.
  static CpuTicks now();
};
/// The busy, idle and stolen ticks in the text of /proc/stat.
CpuTicks parse_proc_stat(const std::string& text);

/// The load of the machine while a cell was measured.
struct MachineUse {
  double steal = 0;      ///< share of the cores' time that the hypervisor gave to others
  double others = 0;     ///< share that processes took which are neither this one nor its children
  double load = 0;       ///< of one minute, at the end
  double clock_mhz = 0;  ///< mean of the cores at the end; 0: not known
  double read_gb_s_before = 0, read_gb_s_after = 0;
};
/// The shares of the time between; load and clock as they are now.
MachineUse machine_use(const CpuTicks& before, const CpuTicks& after);
Json to_json(const MachineUse& use);

/// @return the reason by which the machine makes a cell void, if there is one.
std::optional<std::string> moved_too_much(const MachineUse& use, const VoidRule& rule);

/// @return CPU, cores, memory and kernel, for a reader of the figures elsewhere.
Json describe_machine();

}  // namespace outrider
