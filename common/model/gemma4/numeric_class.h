#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "common/model/gemma4/backbone.h"

namespace outrider {

/// Returns everything that the bits of this backbone's rows depend on, in one line: type, instruction set, matrix
/// product implementation, versions of this program, its compiler and libraries, fingerprint of the weights, and a hash
/// of the model's output for a few fixed tokens, which covers everything not listed (docs/numerics.md). Costs a forward
/// pass of 16 rows.
std::string numeric_class(Backbone& backbone);

/// The same for another network of the model. @param probe  a hash of its output for a fixed input
std::string numeric_class(WeightType type, const std::string& gemm, std::uint64_t fingerprint, std::uint64_t probe);

/// Hashes these bits, continuing from `hash`.
std::uint64_t probe_hash(std::uint64_t hash, std::span<const float> row);

}  // namespace outrider
