#pragma once

#include <cstdint>
#include <span>

#include "common/base/ids.h"
#include "common/checkpoint/checkpoint.h"
#include "common/kernels/linear.h"
#include "common/model/buffers.h"

namespace outrider {

/// Rows of an embedding table, times a constant. Reads the mapped checkpoint; copies nothing.
class Embedding {
 public:
  /// @param table [V, width], F32 or BF16; its checkpoint must outlive this.
  /// @param type  rounds sqrt(width) to bf16 first unless it is f32, as a bf16 model does (gemma4.md 3.1).
  Embedding(const TensorEntry& table, std::int64_t scale_width, WeightType type);

  /// row = table[token] * scale. @param row [width]. @pre 0 <= token < V.
  void lookup(TokenId token, std::span<float> row) const;
  void report(const BufferSink& sink, const std::string& name) const {
    sink({.name = name, .dtype = to_string(dtype_), .shape = {rows_, width_}, .bytes = bytes_.size(), .mapped = true});
  }

 private:
  DType dtype_;
  std::span<const std::byte> bytes_;
  std::int64_t rows_, width_;
  float scale_;
};

/// sqrt(width) as the weights' type holds it.
float embedding_scale(std::int64_t width, WeightType type);

}  // namespace outrider
