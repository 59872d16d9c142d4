#include "common/model/embedding.h"

#include <cmath>
#include <utility>

namespace outrider {

float embedding_scale(std::int64_t width, WeightType type) {
  const auto scale = static_cast<float>(std::sqrt(static_cast<double>(width)));
  return activation_dtype(type) == DType::kF32 ? scale : to_float(to_bf16(scale));
}

Embedding::Embedding(RowTable table, std::int64_t scale_width, WeightType type)
    : table_(std::move(table)), scale_(embedding_scale(scale_width, type)) {}

void Embedding::lookup(TokenId token, std::span<float> row) const {
  CHECK(0 <= token && token < table_.rows, "token {}, rows {}", token, table_.rows);
  CHECK(static_cast<std::int64_t>(row.size()) == table_.width);
  table_.read(token, row);
  for (float& x : row) x *= scale_;
}

}  // namespace outrider
