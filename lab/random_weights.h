#pragma once

#include <memory>
#include <string>

#include "common/model/gemma4/weights.h"

namespace outrider {

/// Weights made up in memory, for benchmarks: whatever a model asks for, in the shape that it asks for, as
/// large and as laid out as a checkpoint's. Matrices are made in the type they are stored in, at the memory's
/// speed, and tables in the type's width (Q4_0 for int4, Q8_0 for int8). Every matrix has a root mean square of
/// 1/sqrt(in), as in a trained model, so that activations stay near one. The same name gives the same bytes.
/// @param name for messages, as a path
std::shared_ptr<const WeightSource> random_weights(WeightType type, const std::string& name);

}  // namespace outrider
