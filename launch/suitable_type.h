#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/base/result.h"
#include "common/compute/kernels/linear.h"
#include "common/os/host.h"
#include "common/pair/pair_files.h"

namespace outrider {

/// Default type of a pair's weights.
struct SuitableType {
  WeightType type = WeightType::kBf16;
  std::string why;  ///< for a person; empty: as published, or as packed
};

/// Returns the backbone's own type if it is a pack; q4 if its layers are on a 4-bit grid; otherwise bf16, or int8 if
/// its file has fewer than 16 bits a weight: int8 then loses hardly anything, and bf16 would only cost memory and time.
/// If the type exceeds `memory_bytes`: the next smaller type.
/// @param memory_bytes  free on this machine; none: unknown, and any type fits
/// @return errors as ModelFiles::open and Checkpoint::open; kInvalidArgument for a pack of an unknown type
Result<SuitableType> suitable_type(const PairPaths& paths,
                                   std::optional<std::int64_t> memory_bytes = available_memory_bytes());

}  // namespace outrider
