#pragma once

#include <filesystem>

#include "common/base/result.h"
#include "launch/cluster/plan.h"
#include "launch/cluster/process_plan.h"

namespace outrider {

/// Local paths of the files that go to the hosts.
struct PushSources {
  std::filesystem::path program;  ///< becomes the plan's `program` there
  std::filesystem::path model;    ///< becomes the plan's `model`; empty: that has the same path here
};

/// Copies the program and the models of each host's processes to the plan's hosts, over ssh by rsync: what is there
/// already is not sent again. Then compares the SHA-256 of each file there with that of ours, and starts the program
/// there. Says on standard output what was sent; each host that fails is named on standard error, and the others go on.
/// @return how many hosts have failed; kInvalidArgument for a plan that does not say where the program goes, or a path
///   that is not absolute; kNotFound for what is not here.
Result<int> push_to_hosts(const Plan& plan, const ProcessPlan& processes, const PushSources& sources);

}  // namespace outrider
