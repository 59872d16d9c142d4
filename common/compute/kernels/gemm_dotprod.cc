// Integer weights with aarch64's dot products of four bytes per lane.
#include <arm_neon.h>

#include <type_traits>
#include <utility>

#include "common/compute/kernels/kernel_table.h"

namespace outrider {
namespace {

constexpr int kTogether = 1;
#include "common/compute/kernels/gemm_neon.inc"

I add_products(I products, I weights, I x) {
  return (I)vdotq_s32((int32x4_t)products, (int8x16_t)weights, (int8x16_t)x);
}
I add_up(I products) { return products; }
I end_group(I total, I products, I multiplier) { return total + products * multiplier; }
struct Int8 : Int8Signed {
  static I add(I total, I weights, I x) { return add_products(total, weights, x); }
};

#include "common/compute/kernels/gemm_vector.inc"

}  // namespace

void gemm_int4_dotprod(const GemmArgs& a) { gemm<Int4>(a); }
void gemm_q4_dotprod(const GemmArgs& a) { gemm<Q4>(a); }
void gemm_int8_dotprod(const GemmArgs& a) { gemm<Elements<Int8>>(a); }

}  // namespace outrider
