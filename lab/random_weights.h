#pragma once

#include <memory>
#include <string>

#include "common/model/gemma4/weights.h"

namespace outrider {

/// Random weights in memory, for benchmarks: any tensor that a model requests, with the size and layout of a
/// checkpoint's. Matrices are generated in their storage type, at the memory's speed, and tables in the type's width
/// (Q4_0 for int4, Q8_0 for int8). Every matrix has a root mean square of 1/sqrt(in), as in a trained model, so that
/// activations stay near one. Equal names give equal bytes. @param name  for messages, like a path
std::shared_ptr<const WeightSource> random_weights(WeightType type, const std::string& name);

}  // namespace outrider
