#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/base/result.h"
#include "launch/cluster/run_folder.h"
#include "launch/cluster/slurm.h"

namespace outrider {

/// Writes the scripts to the run folder and submits them; adds their jobs to the ledger.
Result<void> submit_to_slurm(const std::vector<RenderedFile>& scripts, const RunFolder& folder);

/// Asks the jobs' scripts to end, which drains all steps, and cancels the remaining jobs after the grace.
void end_slurm_jobs(const std::vector<std::string>& jobs, int grace_seconds);

/// Asks squeue about the job of this process.
/// @param format  squeue's: "%e", its end
/// @return kUnavailable outside a job, or if squeue does not know
Result<std::string> ask_slurm_of_this_job(const std::string& format);

/// Returns the job of this process for lock.json: its number, partition, nodes, time limit. Null outside a job.
nlohmann::ordered_json slurm_context();

/// Returns a command with status 0 while the job is queued or running.
std::vector<std::string> slurm_alive_command(const std::string& job);

}  // namespace outrider
