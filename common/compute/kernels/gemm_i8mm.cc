// Integer weights with aarch64's products of two rows of eight bytes by two.
#include <arm_neon.h>

#include <type_traits>
#include <utility>

#include "common/compute/kernels/kernel_table.h"

namespace outrider {
namespace {

constexpr int kTogether = 2;
#include "common/compute/kernels/gemm_neon.inc"

I add_products(I products, I weights, I x) {
  return (I)vmmlaq_s32((int32x4_t)products, (int8x16_t)x, (int8x16_t)weights);
}
I add_up(I products) { return products; }
I end_group(I total, I products, I multiplier) { return total + products * multiplier; }
struct Int8 : Int8Signed {
  static I add(I total, I weights, I x) { return add_products(total, weights, x); }
};

#include "common/compute/kernels/gemm_vector.inc"

/// Multiplies pairs of rows; a single remaining row without the instruction, which would compute it twice.
/// @param step_bytes  of a row's inputs
void by_twos(GemmArgs a, std::int64_t step_bytes, GemmKernel* twos, GemmKernel* one) {
  const std::int64_t even = a.rows / 2 * 2, left = a.rows - even;
  a.rows = even;
  if (even > 0) twos(a);
  a.rows = left;
  a.x += even * a.steps * step_bytes;
  if (a.sums != nullptr) a.sums += even * a.steps * 2, a.row_scale += even;
  a.y += even * a.y_stride;
  if (left > 0) one(a);
}

}  // namespace

void gemm_int4_i8mm(const GemmArgs& a) { by_twos(a, kStepBytes, gemm<Int4>, gemm_int4_dotprod); }
void gemm_q4_i8mm(const GemmArgs& a) { by_twos(a, 2 * sizeof(Q4Input), gemm<Q4>, gemm_q4_dotprod); }
void gemm_int8_i8mm(const GemmArgs& a) { by_twos(a, kStepBytes, gemm<Elements<Int8>>, gemm_int8_dotprod); }

}  // namespace outrider
