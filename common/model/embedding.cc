#include "common/model/embedding.h"

#include <cmath>
#include <cstring>

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
  const std::size_t element = size_bytes(dtype_);
  const std::byte* from = bytes_.data() + static_cast<std::size_t>(token) * row.size() * element;
  for (std::size_t i = 0; i < row.size(); ++i, from += element) {
    if (dtype_ == DType::kBf16) {
      Bf16 x;
      std::memcpy(&x, from, sizeof(x));
      row[i] = to_float(x) * scale_;
    } else {
      float x;
      std::memcpy(&x, from, sizeof(x));
      row[i] = x * scale_;
    }
  }
}

}  // namespace outrider
