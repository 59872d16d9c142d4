#include <immintrin.h>

#include "common/kernels/kernel_table.h"

namespace outrider {
constexpr auto kGemmInt4 = gemm_int4_avx2;
constexpr int kLanes = 8;
#include "common/kernels/kernels_vector.inc"
const KernelTable kAvx2Kernels = kTable;
}  // namespace outrider
