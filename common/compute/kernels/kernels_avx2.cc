#include <immintrin.h>

#include "common/compute/kernels/kernel_table.h"

namespace outrider {
constexpr auto kGemmInt4 = gemm_int4_avx2, kGemmQ4 = gemm_q4_avx2, kGemmInt8 = gemm_int8_avx2,
               kGemmBf16 = gemm_bf16_avx2;
constexpr int kLanes = 8;
static __m256 fma_lanes(__m256 a, __m256 b, __m256 c) { return _mm256_fmadd_ps(a, b, c); }
static float from_half(std::uint16_t half) { return _cvtsh_ss(half); }
#include "common/compute/kernels/kernels_vector.inc"
const KernelTable kAvx2Kernels = kTable;
}  // namespace outrider
