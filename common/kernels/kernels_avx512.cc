#include "common/kernels/kernel_table.h"

namespace outrider {
constexpr int kLanes = 16;
#include "common/kernels/kernels_vector.inc"
const KernelTable kAvx512Kernels = kTable;
}  // namespace outrider
