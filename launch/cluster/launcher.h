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

/// Exit statuses of `outrider launch`, beside 0 and those that main() gives a command line that cannot be carried out.
enum LaunchStatus {
  kNotReady = 3,   ///< a worker is missing, or no token came through a verifier
  kLost = 4,       ///< a process ended, not by its deadline, without which there is no text
  kRunFailed = 5,  ///< a command of the plan failed, or was never begun; 75 is passed on as it is
};

struct LaunchOptions {
  Backend backend = Backend::kLocal;
  std::string program;      ///< as the hosts see it
  Build build;              ///< of this program
  std::string dtype;        ///< the plan's
  bool strict = false;      ///< a host or drafter that is missing ends it; else it goes on without
  int ready_seconds = 600;  ///< for all to be ready
  int grace_seconds = 30;   ///< for a process to end by itself once asked
};

/// A client of this process needs these of a launched cluster.
struct ReadyCluster {
  std::string addresses;                ///< of its coordinator, with commas between
  Security security;                    ///< a client's keys, where the run has any
  std::function<Result<void>()> check;  ///< kPeerGone once a process has ended without which there is no text
};
/// It works with the cluster once that is ready. @return the exit status
using LaunchWork = std::function<Result<int>(const ReadyCluster&)>;

/// Starts the plan's processes, waits until they are ready, does the work, and ends everything. Says on standard error
/// what happens. Call it on a thread that lives until it returns: its children end with that thread, on which the work
/// is done too.
/// @param plan  as it was read, for lock.json
/// @param stopped  asked some twenty times a second until the work begins: whether to end
/// @return the exit status: the work's, 0 if it was stopped before, or that nothing came of it.
Result<int> run_launch(const nlohmann::json& plan, const ProcessPlan& processes, const LaunchWork& work,
                       const LaunchOptions& options, const RunFolder& folder, const std::function<bool()>& stopped);

/// The same, with these commands as the work: one after the other until one fails (kRunFailed too if the run is stopped
/// before the last has ended). Without commands the cluster runs until it is stopped.
Result<int> run_launch(const nlohmann::json& plan, const ProcessPlan& processes,
                       const std::vector<std::vector<std::string>>& commands, const LaunchOptions& options,
                       const RunFolder& folder, const std::function<bool()>& stopped);

/// Ends the processes of a run's ledger, if each is still the same process: asks the launcher, then each process, and
/// kills those that are left after the grace. Slurm's jobs are asked first too, then cancelled.
/// @return how many had to be killed.
Result<int> take_down(const RunFolder& folder, int grace_seconds);

/// @return for each entry of the ledger whether it is alive.
Result<std::vector<std::pair<LedgerEntry, bool>>> who_is_alive(const RunFolder& folder);

}  // namespace outrider
