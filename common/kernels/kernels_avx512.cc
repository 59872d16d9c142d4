#include <immintrin.h>

#include "common/kernels/kernel_table.h"

namespace outrider {
constexpr auto kGemmInt4 = gemm_int4_avx512;
constexpr int kLanes = 16;
#include "common/kernels/kernels_vector.inc"
const KernelTable kAvx512Kernels = kTable;
}  // namespace outrider
