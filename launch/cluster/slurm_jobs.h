#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/base/result.h"
#include "launch/cluster/run_folder.h"
#include "launch/cluster/slurm.h"

namespace outrider {

/// Writes the scripts to the run folder and submits them; the ledger gets their jobs.
Result<void> submit_to_slurm(const std::vector<RenderedFile>& scripts, const RunFolder& folder);

/// Asks the scripts of jobs to end, which then drain all steps, and cancels the remaining jobs after the grace.
void end_slurm_jobs(const std::vector<std::string>& jobs, int grace_seconds);

/// It asks squeue about the job that this process is in. @param format  of squeue: "%e", its end
/// @return kUnavailable where this is no job, or squeue does not say.
Result<std::string> ask_slurm_of_this_job(const std::string& format);

/// The job that this process is in, for lock.json: its number, partition, nodes, time limit. Null: it is in none.
nlohmann::ordered_json slurm_context();

/// A command with status 0 while the job waits or runs.
std::vector<std::string> slurm_alive_command(const std::string& job);

}  // namespace outrider
