#include <immintrin.h>

#include "common/compute/kernels/kernel_table.h"

namespace outrider {
constexpr auto kGemmInt4 = gemm_int4_avx512, kGemmQ4 = gemm_q4_avx512, kGemmInt8 = gemm_int8_avx512,
               kGemmBf16 = gemm_bf16_avx512;
constexpr int kLanes = 16;
static __m512 fma_lanes(__m512 a, __m512 b, __m512 c) { return _mm512_fmadd_ps(a, b, c); }
static float from_half(std::uint16_t half) { return _cvtsh_ss(half); }
#include "common/compute/kernels/kernels_vector.inc"
const KernelTable kAvx512Kernels = kTable;
}  // namespace outrider
