#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.h"

namespace outrider {

/// The names in a list of host sets, as Slurm, pdsh and clush write them: "node[1-3,07],gpu" is node1, node2, node3,
/// node07, gpu. Leading zeros of a range's first number give the width: n[08-10] is n08, n09, n10.
/// @return kInvalidArgument for what is no such list, or one of more than 4096 names.
Result<std::vector<std::string>> expand_host_set(std::string_view set);

}  // namespace outrider
