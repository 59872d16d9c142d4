#pragma once

#include <string>
#include <vector>

#include "common/base/result.h"
#include "launch/cluster/plan.h"
#include "launch/cluster/process_plan.h"
#include "launch/cluster/run_folder.h"

namespace outrider {

/// The base of launch/kubernetes, compiled into the program: kubernetes/base/... in a run folder.
std::vector<RenderedFile> kubernetes_base();

/// Renders the plan as a Kustomize overlay of that base: kubernetes/... in a run folder. Hosts become an affinity to
/// the nodes of these names; threads, whole CPUs; commands, a Job. @param version  of this program, for the image's tag
/// @return kInvalidArgument for settings that the base cannot have or Kubernetes does itself
Result<std::vector<RenderedFile>> render_kubernetes(const Plan& plan, const ProcessPlan& processes,
                                                    const std::string& version);

/// @return the commands that apply it, for a person @param run_dir  contains kubernetes/ and the run's keys
std::string how_to_apply(const Plan& plan, const std::string& run_dir);

}  // namespace outrider
