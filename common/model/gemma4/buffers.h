#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "common/compute/kernels/linear.h"

namespace outrider {

/// One long-lived block of memory, as its owner knows it.
struct BufferFacts {
  std::string name;                 ///< "target_main_stream", or "target_weights.layers.3.qkv" for a part
  std::string dtype;                ///< of its elements
  std::vector<std::int64_t> shape;  ///< row-major
  std::size_t bytes = 0;  ///< what it takes now: packing and page rounding included, rows not yet written left out
  bool mapped = false;    ///< pages of a checkpoint file, which the kernel may drop and read again
};

/// Every owner of long-lived memory has a report_buffers() that passes each of its blocks to such a
/// function, so that `outrider layout` keeps no list of sizes of its own.
using BufferSink = std::function<void(const BufferFacts&)>;

void report_linear(const BufferSink& sink, const std::string& name, const Linear& linear);
/// Values kept as floats, norm weights and the like, or ids of tokens.
template <typename T>
void report_vector(const BufferSink& sink, const std::string& name, const std::vector<T>& values) {
  if (values.empty()) return;
  sink({.name = name,
        .dtype = std::is_same_v<T, float> ? "F32" : "I32",
        .shape = {std::ssize(values)},
        .bytes = values.capacity() * sizeof(T)});
}

}  // namespace outrider
