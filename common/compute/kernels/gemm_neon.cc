// Integer weights with baseline aarch64 instructions.
#include <arm_neon.h>

#include <type_traits>
#include <utility>

#include "common/compute/kernels/kernel_table.h"

namespace outrider {
namespace {

constexpr int kTogether = 1;
#include "common/compute/kernels/gemm_neon.inc"

/// Sums pairs of a lane's products: of int8 at most 2 * 128 * 127, which fits 16 bits.
Halves pairs(I weights, I x) {
  const int8x16_t a = (int8x16_t)weights, b = (int8x16_t)x;
  return (Halves)vpaddq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b)), vmull_high_s8(a, b));
}
/// Of nibbles, a whole group's sum fits 16 bits: at most 16 * 15 * 128.
I add_products(I products, I weights, I x) { return (I)((Halves)products + pairs(weights, x)); }
I add_up(I products) { return (I)vpaddlq_s16((int16x8_t)products); }
I end_group(I total, I products, I multiplier) { return total + add_up(products) * multiplier; }
struct Int8 : Int8Signed {
  static I add(I total, I weights, I x) { return (I)vpadalq_s16((int32x4_t)total, (int16x8_t)pairs(weights, x)); }
};

#include "common/compute/kernels/gemm_vector.inc"

}  // namespace

void gemm_int4_neon(const GemmArgs& a) { gemm<Int4>(a); }
void gemm_q4_neon(const GemmArgs& a) { gemm<Q4>(a); }
void gemm_int8_neon(const GemmArgs& a) { gemm<Elements<Int8>>(a); }

}  // namespace outrider
