#include "common/model/gemma4/embedding.h"

#include <cmath>
#include <utility>

namespace outrider {

Embedding::Embedding(RowTable table, std::int64_t scale_width, WeightType type)
    : table_(std::move(table)), scale_(static_cast<float>(std::sqrt(static_cast<double>(scale_width)))) {
  if (activation_dtype(type) != DType::kF32) scale_ = to_float(to_bf16(scale_));
}

void Embedding::lookup(TokenId token, std::span<float> row) const {
  CHECK(0 <= token && token < table_.rows, "token {}, rows {}", token, table_.rows);
  CHECK(static_cast<std::int64_t>(row.size()) == table_.width);
  table_.read(token, row);
  for (float& x : row) x *= scale_;
}

}  // namespace outrider
