#pragma once

#include <functional>
#include <string>

#include "common/tensor/tensor.h"

namespace outrider {

/// Receives named intermediates: "embedding", "layers.3.attention_output", "final_normed", ... Names
/// follow tests/goldens/reference.py, so that a wrong logit is found by bisection. Null in production.
using TraceSink = std::function<void(const std::string& name, Matrix<const float> value)>;

}  // namespace outrider
