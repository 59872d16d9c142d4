#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "common/compute/kernels/linear.h"

namespace outrider {

/// One long-lived block of memory, described by its owner.
struct BufferFacts {
  std::string name;                 ///< "target_main_stream", or "target_weights.layers.3.qkv" for a part
  std::string dtype;                ///< of its elements
  std::vector<std::int64_t> shape;  ///< row-major
  std::size_t bytes = 0;            ///< present memory: includes packing and page rounding, excludes unwritten rows
  bool mapped = false;              ///< pages of a checkpoint file, which the kernel may drop and read again
};

/// Receives each block of an owner's report_buffers(). Every owner of long-lived memory has one, so that `outrider
/// layout` needs no list of sizes of its own.
using BufferSink = std::function<void(const BufferFacts&)>;

void report_linear(const BufferSink& sink, const std::string& name, const Linear& linear);
/// Reports a vector of floats (such as a norm's weights) or of token ids.
template <typename T>
void report_vector(const BufferSink& sink, const std::string& name, const std::vector<T>& values) {
  if (values.empty()) return;
  sink({.name = name,
        .dtype = std::is_same_v<T, float> ? "F32" : "I32",
        .shape = {std::ssize(values)},
        .bytes = values.capacity() * sizeof(T)});
}

}  // namespace outrider
