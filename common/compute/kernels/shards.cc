#include "common/compute/kernels/shards.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/compute/kernels/kernel_table.h"

namespace outrider {

Columns ShardPlace::share(std::int64_t n) const {
  const std::int64_t unit = n >= kBlockOutputs * count ? kBlockOutputs : 1, units = (n + unit - 1) / unit;
  const auto cut = [&](std::int64_t i) { return std::min(units * i / count * unit, n); };
  return {cut(rank), cut(rank + 1) - cut(rank)};
}

void Shards::gather(Matrix<float> rows, Columns own) {
  CHECK(rows.size(1) <= kPieceFloats, "{} columns", rows.size(1));
  const std::int64_t some = kPieceFloats / rows.size(1);
  for (std::int64_t first = 0; first < rows.size(0); first += some, ++gathers_)
    gather_piece(rows.rows(first, std::min(some, rows.size(0) - first)), own);
}

}  // namespace outrider
