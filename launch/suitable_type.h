#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/base/result.h"
#include "common/compute/kernels/linear.h"
#include "common/os/host.h"
#include "common/pair/pair_files.h"

namespace outrider {

/// The type in which a pair's weights are held unless an option names one.
struct SuitableType {
  WeightType type = WeightType::kBf16;
  std::string why;  ///< for a person; empty: as published, or as packed
};

/// A pack's own type; q4 where the backbone's layers lie on a 4-bit grid. Else bf16, or int8 where the backbone's file
/// has fewer than 16 bits a weight: int8 loses hardly anything of those, and bf16 only takes memory and time. Where
/// that is more than `memory_bytes`, the next smaller.
/// @param memory_bytes  those of this machine, as it is now; none: nobody knows, and any type fits
/// @return as ModelFiles::open and Checkpoint::open; kInvalidArgument for a pack of a type that there is not
Result<SuitableType> suitable_type(const PairPaths& paths,
                                   std::optional<std::int64_t> memory_bytes = available_memory_bytes());

}  // namespace outrider
