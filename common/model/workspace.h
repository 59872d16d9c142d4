#pragma once

#include <cstdint>
#include <string>

#include "common/kernels/linear.h"
#include "common/model/buffers.h"
#include "common/tensor/tensor.h"

namespace outrider {

/// A float buffer that is viewed as a matrix of any shape; grows to the largest, then allocates no
/// more. Holds padded_rows() rows, as Linear wants.
class Buffer {
 public:
  Matrix<float> view(std::int64_t rows, std::int64_t columns) {
    const auto needed = static_cast<std::size_t>(padded_rows(rows) * columns);
    if (data_.size() < needed) {
      data_ = AlignedArray<float>(needed);
      shape_ = {padded_rows(rows), columns};
    }
    return {data_.data(), {rows, columns}};
  }
  void report(const BufferSink& sink, const std::string& name) const {
    if (data_.size() > 0) sink({.name = name, .dtype = "F32", .shape = shape_, .bytes = data_.size() * sizeof(float)});
  }

 private:
  AlignedArray<float> data_;
  std::vector<std::int64_t> shape_;  ///< of the view that it was made for
};

/// Scratch of one model instance, by purpose. One forward at a time.
struct Workspace {
  Buffer normed, qkv, attention, gate_up, product, ple_gate;
  Buffer router_input, router_probabilities, experts_input, expert_rows, experts_output;

  /// @param name of the whole
  void report_buffers(const BufferSink& sink, const std::string& name) const {
    normed.report(sink, name + ".normed");
    qkv.report(sink, name + ".qkv");
    attention.report(sink, name + ".attention");
    gate_up.report(sink, name + ".gate_up");
    product.report(sink, name + ".product");
    ple_gate.report(sink, name + ".ple_gate");
    router_input.report(sink, name + ".router_input");
    router_probabilities.report(sink, name + ".router_probabilities");
    experts_input.report(sink, name + ".experts_input");
    expert_rows.report(sink, name + ".expert_rows");
    experts_output.report(sink, name + ".experts_output");
  }
};

}  // namespace outrider
