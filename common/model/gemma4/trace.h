#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "common/compute/tensor/tensor.h"

namespace outrider {

/// Receives named intermediates: "embedding", "layers.3.attention_output", "final_normed", ... Names follow
/// tests/goldens/reference.py, so that bisection finds the cause of a wrong logit.
using TraceSink = std::function<void(const std::string& name, Matrix<const float> value)>;

/// Names the intermediates of one part of a model for a sink. Does nothing without a sink, as in production.
class Trace {
 public:
  /// @param sink  outlives this object
  Trace(const TraceSink* sink = nullptr) : sink_(sink) {}  // NOLINT(google-explicit-constructor)

  explicit operator bool() const { return sink_ != nullptr; }
  void note(std::string_view name, Matrix<const float> value) const {
    if (sink_ != nullptr) (*sink_)(prefix_ + std::string(name), value);
  }
  /// Returns the trace of a part within this one.
  Trace under(std::string_view part) const {
    Trace inner = *this;
    if (sink_ != nullptr) inner.prefix_.append(part).append(".");
    return inner;
  }

 private:
  const TraceSink* sink_;
  std::string prefix_;
};

}  // namespace outrider
