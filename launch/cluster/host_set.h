#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace outrider {

/// The names in a list of host sets, as Slurm, pdsh and clush write them: "node[1-3,07],gpu" is node1, node2, node3,
/// node07, gpu. Leading zeros of a range's first number give the width: n[08-10] is n08, n09, n10.
/// rack[1-2]n[0-3] is eight.
/// @return kInvalidArgument for what is no such list, or one of more than 4096 names.
Result<std::vector<std::string>> expand_host_set(std::string_view set);

/// The hosts that SkyPilot, dstack or Slurm names in the environment, as a host file (place_on_hosts) whose first host
/// is for verifiers and whose others are for drafters.
/// @param value_of  getenv, or what stands for it
/// @return kInvalidArgument where none of them does, or one has no hosts.
Result<std::string> host_file_of_environment(const std::function<const char*(const char*)>& value_of);

}  // namespace outrider
