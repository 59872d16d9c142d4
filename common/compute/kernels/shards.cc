#include "common/compute/kernels/shards.h"

#include <algorithm>

#include "common/compute/kernels/kernel_table.h"

namespace outrider {

Columns ShardPlace::share(std::int64_t n) const {
  const std::int64_t unit = n >= kBlockOutputs * count ? kBlockOutputs : 1, units = (n + unit - 1) / unit;
  const auto cut = [&](std::int64_t i) { return std::min(units * i / count * unit, n); };
  return {cut(rank), cut(rank + 1) - cut(rank)};
}

}  // namespace outrider
