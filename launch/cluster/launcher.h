#pragma once

#include <algorithm>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/base/result.h"
#include "common/os/child.h"
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
  std::string program;                ///< on the hosts
  Build build;                        ///< of this program
  std::string dtype;                  ///< the plan's
  bool strict = false;                ///< a missing host or drafter ends it; otherwise it continues without
  int ready_seconds = kReadySeconds;  ///< for all processes together
  int grace_seconds = 30;             ///< for a process to end by itself once asked
};

/// A run of a plan's processes, which end with this object. Reports progress on standard error. One thread makes, uses
/// and destroys it: the children would end with that thread.
class Launcher {
 public:
  /// @param plan  as read, for lock.json @param stopped  polled some twenty times a second by all waits; true ends a
  /// wait. Everything else outlives this object too
  Launcher(const nlohmann::json& plan, const ProcessPlan& processes, const LaunchOptions& options,
           const RunFolder& folder, std::function<bool()> stopped)
      : plan_(plan), processes_(processes), options_(options), folder_(folder), stopped_(std::move(stopped)) {}
  ~Launcher();
  Launcher(const Launcher&) = delete;
  Launcher& operator=(const Launcher&) = delete;

  /// Starts the processes and waits until they are ready.
  /// @return none once they are; else the exit status: 0 if it was stopped before, or a LaunchStatus
  Result<std::optional<int>> start();
  /// Returns the coordinator's addresses, separated by commas.
  std::string addresses() const;
  /// Returns a client's keys, if the run has any.
  Security security() const { return keys_ ? keys_->client() : Security(); }
  /// @return kPeerGone once the run has lost its coordinator or last verifier
  Result<void> check();
  /// Runs a command to its end, or until it is stopped. @return 0, kRunFailed, kLost, or 75 unchanged
  Result<int> run_command(std::size_t number, const std::vector<std::string>& planned);
  /// Waits until the run is over, or until it is stopped. @return kLost, or 0
  int serve();

 private:
  /// A started process of the plan.
  struct Running {
    const PlannedProcess* plan;
    Child child;
    ProcessId process;  ///< on its host; start is 0 while unknown
    std::optional<int> status;

    /// @return true if the process has ended by its own deadline, by itself or cut off
    bool left() const;
  };

  /// Writes lock.json, unless it is stopped. Reports hosts that cannot take part, and hosts that differ from the first.
  Result<void> look_at_hosts();
  Result<void> start_all();
  /// @return kNotReady or kLost, or 0 once it is stopped; none once all are ready
  Result<std::optional<int>> await_ready();
  void end_all();
  /// @param more  options with the coordinator's address
  Result<void> start(const PlannedProcess& process, const std::vector<std::string>& more);
  /// Waits until it has printed its addresses. @return empty once the run is over, or stopped
  Result<std::vector<std::string>> await_addresses(const PlannedProcess& process);
  /// Checks all processes. @return one whose end ends the run, preferably a lost one; null: the run continues
  const Running* look();
  /// Returns the number of processes of a role that have not ended.
  std::ptrdiff_t alive(std::string_view role) const;
  /// @return true if the end of this process ends the run
  bool ends_run(const Running& running) const;
  void explain(const Running& running) const;
  /// Returns the reason for a host's missing facts.
  std::string why_no_facts(const Host& host, const Captured& answer) const;
  bool left_out(const Host& host) const { return std::ranges::count(left_out_, host.name) > 0; }
  void log_state(const char* state);

  const nlohmann::json& plan_;
  const ProcessPlan& processes_;
  const LaunchOptions& options_;
  const RunFolder& folder_;
  const std::function<bool()> stopped_;
  std::vector<std::string> left_out_;  ///< hosts left out
  std::vector<Running> running_;
  std::vector<std::string> addresses_;
  std::optional<RunKeys> keys_;
  std::string state_;  ///< empty: nothing was started
};

/// Starts the plan's processes, runs these commands once they are ready, one after the other until one fails, and ends
/// everything. Without commands the cluster runs until it is stopped.
/// @return the exit status: 0, 75, or a LaunchStatus (kRunFailed also if it is stopped before the last has ended)
Result<int> run_launch(const nlohmann::json& plan, const ProcessPlan& processes,
                       const std::vector<std::vector<std::string>>& commands, const LaunchOptions& options,
                       const RunFolder& folder, const std::function<bool()>& stopped);

/// Ends the processes in a run's ledger, if each is still the same process: asks the launcher, then each process, and
/// kills the rest after the grace. Slurm's jobs are asked first too, then cancelled. @return the number killed
Result<int> take_down(const RunFolder& folder, int grace_seconds);

/// @return each entry of the ledger, and true if it is alive
Result<std::vector<std::pair<LedgerEntry, bool>>> who_is_alive(const RunFolder& folder);

}  // namespace outrider
