#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "common/model/gemma4/backbone.h"

namespace outrider {

/// What the bits of this backbone's rows depend on, in one line: type, instruction set, who multiplies, versions of
/// this program, its compiler and libraries, fingerprint of the weights, and a hash of what the model makes of a few
/// fixed tokens here, which shows what the list leaves out (docs/numerics.md).
/// Costs a forward pass of 16 rows.
std::string numeric_class(Backbone& backbone);

/// The same of another network of the model. @param probe  a hash of what it makes of something fixed here
std::string numeric_class(WeightType type, const std::string& gemm, std::uint64_t fingerprint, std::uint64_t probe);

/// A hash of these bits, which goes on from another.
std::uint64_t probe_hash(std::uint64_t hash, std::span<const float> row);

}  // namespace outrider
