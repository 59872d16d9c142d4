#pragma once

#include <cstdint>

#include "common/compute/kernels/linear.h"
#include "common/compute/tensor/tensor.h"

namespace outrider {

/// A float buffer that is viewed as a matrix of any shape; it grows to the largest and then allocates no more. Has
/// padded_rows() rows, for Linear.
class Buffer {
 public:
  Matrix<float> view(std::int64_t rows, std::int64_t columns) {
    const auto needed = static_cast<std::size_t>(padded_rows(rows) * columns);
    if (data_.size() < needed) data_ = AlignedArray<float>(needed);
    return {data_.data(), {rows, columns}};
  }

 private:
  AlignedArray<float> data_;
};

/// Scratch memory of one model instance, by purpose. One forward at a time.
struct Workspace {
  Buffer normed, qkv, attention, gate_up, product, ple_gate;
  Buffer router_input, router_probabilities, experts_input, expert_rows, experts_output;
};

}  // namespace outrider
