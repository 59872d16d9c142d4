#pragma once

#include <functional>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/base/result.h"
#include "common/wire/transport/security.h"
#include "launch/cluster/backend.h"
#include "launch/cluster/facts.h"
#include "launch/cluster/process_plan.h"
#include "launch/cluster/run_folder.h"

namespace outrider {

/// Exit statuses of `outrider launch`, besides 0 and main()'s for an invalid command line.
enum LaunchStatus {
  kNotReady = 3,   ///< a worker is missing, or a verifier produced no token
  kLost = 4,       ///< the coordinator or the last verifier ended, not by its deadline
  kRunFailed = 5,  ///< a command of the plan failed, or was never begun; 75 is passed on unchanged
};

struct LaunchOptions {
  Backend backend = Backend::kLocal;
  std::string program;      ///< on the hosts
  Build build;              ///< of this program
  std::string dtype;        ///< the plan's
  bool strict = false;      ///< a missing host or drafter ends it; otherwise it continues without
  int ready_seconds = 600;  ///< for all processes together
  int grace_seconds = 30;   ///< for a process to end by itself once asked
};

/// A launched cluster, for clients in this process.
struct ReadyCluster {
  std::string addresses;                ///< of its coordinator, separated by commas
  Security security;                    ///< a client's keys, if the run has any
  std::function<Result<void>()> check;  ///< kPeerGone once the run has lost its coordinator or last verifier
};
/// Works with the cluster once it is ready. @return the exit status
using LaunchWork = std::function<Result<int>(const ReadyCluster&)>;

/// Starts the plan's processes, waits until they are ready, does the work, and ends everything. Reports progress on
/// standard error. Call it on a thread that lives until it returns: its children end with that thread, on which the
/// work is done too.
/// @param plan  as read, for lock.json
/// @param stopped  polled some twenty times a second until the work begins: true ends it
/// @return the exit status: the work's, 0 if it was stopped before, or a LaunchStatus
Result<int> run_launch(const nlohmann::json& plan, const ProcessPlan& processes, const LaunchWork& work,
                       const LaunchOptions& options, const RunFolder& folder, const std::function<bool()>& stopped);

/// The same, with these commands as the work: one after the other until one fails (kRunFailed also if the run is
/// stopped before the last has ended). Without commands the cluster runs until it is stopped.
Result<int> run_launch(const nlohmann::json& plan, const ProcessPlan& processes,
                       const std::vector<std::vector<std::string>>& commands, const LaunchOptions& options,
                       const RunFolder& folder, const std::function<bool()>& stopped);

/// Ends the processes in a run's ledger, if each is still the same process: asks the launcher, then each process, and
/// kills the rest after the grace. Slurm's jobs are asked first too, then cancelled. @return the number killed
Result<int> take_down(const RunFolder& folder, int grace_seconds);

/// @return each entry of the ledger, and true if it is alive
Result<std::vector<std::pair<LedgerEntry, bool>>> who_is_alive(const RunFolder& folder);

}  // namespace outrider
