#include "common/model/embedding.h"

#include <cmath>

#include "common/tensor/decode.h"

namespace outrider {

float embedding_scale(std::int64_t width, WeightType type) {
  const auto scale = static_cast<float>(std::sqrt(static_cast<double>(width)));
  return type == WeightType::kF32 ? scale : to_float(to_bf16(scale));
}

Embedding::Embedding(const TensorEntry& table, std::int64_t scale_width, WeightType type)
    : dtype_(table.dtype),
      bytes_(table.bytes),
      rows_(table.shape[0]),
      width_(table.shape[1]),
      scale_(embedding_scale(scale_width, type)) {}

void Embedding::lookup(TokenId token, std::span<float> row) const {
  CHECK(0 <= token && token < rows_, "token {}, rows {}", token, rows_);
  CHECK(static_cast<std::int64_t>(row.size()) == width_);
  decode(dtype_, bytes_.data() + static_cast<std::size_t>(token) * stored_bytes(dtype_, row.size()), row);
  for (float& x : row) x *= scale_;
}

}  // namespace outrider
