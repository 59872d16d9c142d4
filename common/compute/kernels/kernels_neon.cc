#include <arm_neon.h>

#include "common/compute/kernels/kernel_table.h"

namespace outrider {
constexpr auto kGemmInt4 = gemm_int4_neon, kGemmQ4 = gemm_q4_neon, kGemmInt8 = gemm_int8_neon;
constexpr auto kGemmBf16 = nullptr;
constexpr int kLanes = 4;
static float32x4_t fma_lanes(float32x4_t a, float32x4_t b, float32x4_t c) { return vfmaq_f32(c, a, b); }
static float from_half(std::uint16_t half) {
  return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(half))), 0);
}
#include "common/compute/kernels/kernels_vector.inc"
const KernelTable kNeonKernels = kTable;
}  // namespace outrider
