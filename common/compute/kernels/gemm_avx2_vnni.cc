// Integer weights with AVX2 and AVX-VNNI's products.
#include <immintrin.h>

#include <type_traits>
#include <utility>

#include "common/compute/kernels/kernel_table.h"

namespace outrider {
namespace {

#include "common/compute/kernels/gemm_avx2.inc"

constexpr bool kMultipliesNibbles = true;
constexpr int kInt4Rows = 4, kQ4Rows = 8, kQ4AtOnce = 3;
constexpr int int4_columns(int rows) { return rows == 1 ? 4 : 2; }
I add_products(I products, I weights, I x) {
  return (I)_mm256_dpbusd_avx_epi32((__m256i)products, (__m256i)weights, (__m256i)x);
}
I add_up(I products) { return products; }
I add_zeros(I total, Halves zero, Halves sums) {
  return (I)_mm256_dpwssd_avx_epi32((__m256i)total, (__m256i)-zero, (__m256i)sums);
}

#include "common/compute/kernels/gemm_vector.inc"

}  // namespace

void gemm_int4_avx2_vnni(const GemmArgs& a) { a.rows <= kInt4Rows ? gemm<Int4>(a) : gemm<Elements<Int4Bytes>>(a); }
void gemm_q4_avx2_vnni(const GemmArgs& a) { gemm<Q4>(a); }
void gemm_int8_avx2_vnni(const GemmArgs& a) { gemm<Elements<Int8AsUnsigned>>(a); }

}  // namespace outrider
