#pragma once

#include <filesystem>

#include "common/base/result.h"
#include "launch/cluster/plan.h"
#include "launch/cluster/process_plan.h"

namespace outrider {

/// Local paths of the files that go to the hosts.
struct PushSources {
  std::filesystem::path program;  ///< becomes the plan's `program` there
  std::filesystem::path model;    ///< becomes the plan's `model`; empty: that path is the same here
};

/// Copies the program and the models of each host's processes to the plan's hosts, with rsync over ssh, which compares
/// the checksum of each file there with ours and sends those that differ. Then starts the program there. Prints what
/// was sent; reports failed hosts on standard error, and continues with the others.
/// @return the number of failed hosts; kInvalidArgument for a plan without a destination for the program, or a path
/// that is not absolute; kNotFound for a missing local file
Result<int> push_to_hosts(const Plan& plan, const ProcessPlan& processes, const PushSources& sources);

}  // namespace outrider
