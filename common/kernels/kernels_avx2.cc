#include "common/kernels/kernel_table.h"

namespace outrider {
constexpr int kLanes = 8;
#include "common/kernels/kernels_vector.inc"
const KernelTable kAvx2Kernels = kTable;
}  // namespace outrider
