#pragma once

#include <cstdint>
#include <string>

#include "common/compute/kernels/linear.h"
#include "common/compute/tensor/tensor.h"
#include "common/model/gemma4/buffers.h"

namespace outrider {

/// A float buffer that is viewed as a matrix of any shape; it grows to the largest and then allocates no more. Has
/// padded_rows() rows, for Linear.
class Buffer {
 public:
  /// @param name  in its reports, after its owner's
  explicit Buffer(const char* name = "") : name_(name) {}
  Matrix<float> view(std::int64_t rows, std::int64_t columns) {
    const auto needed = static_cast<std::size_t>(padded_rows(rows) * columns);
    if (data_.size() < needed) {
      data_ = AlignedArray<float>(needed);
      shape_ = {padded_rows(rows), columns};
    }
    return {data_.data(), {rows, columns}};
  }
  void report(const BufferSink& sink, const std::string& owner) const {
    if (data_.size() > 0)
      sink({.name = owner + name_, .dtype = "F32", .shape = shape_, .bytes = data_.size() * sizeof(float)});
  }

 private:
  const char* name_;
  AlignedArray<float> data_;
  std::vector<std::int64_t> shape_;  ///< of the view that determined its size
};

/// Scratch memory of one model instance, by purpose. One forward at a time.
struct Workspace {
  Buffer normed{"normed"}, qkv{"qkv"}, attention{"attention"}, gate_up{"gate_up"}, product{"product"};
  Buffer ple_gate{"ple_gate"}, router_input{"router_input"}, router_probabilities{"router_probabilities"};
  Buffer experts_input{"experts_input"}, expert_rows{"expert_rows"}, experts_output{"experts_output"};

  /// @param name of the whole
  void report_buffers(const BufferSink& sink, const std::string& name) const {
    for (const Buffer* buffer : {&normed, &qkv, &attention, &gate_up, &product, &ple_gate, &router_input,
                                 &router_probabilities, &experts_input, &expert_rows, &experts_output})
      buffer->report(sink, name + ".");
  }
};

}  // namespace outrider
