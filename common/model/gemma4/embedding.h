#pragma once

#include <cstdint>
#include <span>

#include "common/base/ids.h"
#include "common/model/gemma4/weights.h"

namespace outrider {

/// Rows of an embedding table, times a constant. Reads the mapped file without a copy.
class Embedding {
 public:
  /// @param type  rounds sqrt(scale_width) to bf16 first unless it is f32, as in a bf16 model (gemma4.md 3.1)
  Embedding(RowTable table, std::int64_t scale_width, WeightType type);

  /// row = table[token] * scale.
  /// @param row  [width]
  /// @pre 0 <= token < V
  void lookup(TokenId token, std::span<float> row) const;

 private:
  RowTable table_;
  float scale_;
};

}  // namespace outrider
