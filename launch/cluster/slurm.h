#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "common/base/result.h"
#include "launch/cluster/plan.h"
#include "launch/cluster/process_plan.h"
#include "launch/cluster/run_folder.h"

namespace outrider {

/// Renders the plan as Slurm jobs, a script for sbatch each, in the requested shape. A host of the plan is one node of
/// the allocation, the first of the plan the first of its job; a header line --nodelist pins real names.
/// @param run_dir  on a file system that all nodes share @param ready_seconds  for all processes together
/// @return kInvalidArgument for settings that Slurm would refuse or misinterpret
Result<std::vector<RenderedFile>> render_slurm(const Plan& plan, const ProcessPlan& processes,
                                               const std::string& program, const std::filesystem::path& run_dir,
                                               int ready_seconds = kReadySeconds);

}  // namespace outrider
