#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace outrider {

/// Expands a list of host sets in Slurm's, pdsh's and clush's notation: "node[1-3,07],gpu" is node1, node2, node3,
/// node07, gpu. Leading zeros of a range's first number set the width: n[08-10] is n08, n09, n10. rack[1-2]n[0-3] is
/// eight names. @return kInvalidArgument for an invalid list, or one of more than 4096 names
Result<std::vector<std::string>> expand_host_set(std::string_view set);

/// Returns the hosts in SkyPilot's, dstack's or Slurm's environment, as a host file (place_on_hosts): the first host
/// for verifiers, the others for drafters.
/// @param value_of  getenv, or a substitute
/// @return kInvalidArgument if none of these variables is set, or the one that is set has no hosts
Result<std::string> host_file_of_environment(const std::function<const char*(const char*)>& value_of);

}  // namespace outrider
