#pragma once

#include <optional>
#include <string>

#include "lab/experiment/plan.h"

namespace outrider {

/// CPU times counted by the kernel, in ticks of all cores together.
struct CpuTicks {
  double busy = 0, idle = 0, steal = 0;
  double ours = 0;  ///< of this process and its descendants

  /// Reads this machine's; all are 0 if /proc cannot be read.
  static CpuTicks now();
};
/// Parses the busy, idle and stolen ticks of /proc/stat.
CpuTicks parse_proc_stat(const std::string& text);

/// The load of the machine while a cell was measured.
struct MachineUse {
  double steal = 0;      ///< share of the cores' time that the hypervisor gave to others
  double others = 0;     ///< share taken by processes other than this one and its descendants
  double load = 0;       ///< of one minute, at the end
  double clock_mhz = 0;  ///< mean of the cores at the end; 0: unknown
  double read_gb_s_before = 0, read_gb_s_after = 0;
};
/// Returns the shares of the time between; load and clock are current.
MachineUse machine_use(const CpuTicks& before, const CpuTicks& after);
Json to_json(const MachineUse& use);

/// @return the reason that the machine makes a cell void, if any
std::optional<std::string> moved_too_much(const MachineUse& use, const VoidRule& rule);

/// @return CPU, cores, memory and kernel, for readers of the figures elsewhere
Json describe_machine();

}  // namespace outrider
