// Integer and bfloat16 weights with AVX2.
#include <immintrin.h>

#include <type_traits>
#include <utility>

#include "common/compute/kernels/kernel_table.h"

namespace outrider {
namespace {

#include "common/compute/kernels/gemm_avx2.inc"

// Nibbles: pairs of a lane's products are summed in 16 bits, at most 16 * 15 * 128.
constexpr bool kMultipliesNibbles = false;
constexpr int kInt4Rows = 6, kQ4Rows = 5, kQ4AtOnce = 1;
constexpr int int4_columns(int rows) { return rows <= 2 ? 4 : 2; }
I add_products(I products, I weights, I x) {
  I sum = (I)((Halves)products + (Halves)_mm256_maddubs_epi16((__m256i)weights, (__m256i)x));
  asm volatile("" : "+x"(sum));  // otherwise g++ would delay sums until products fill the registers and the stack
  return sum;
}
I add_up(I products) { return (I)_mm256_madd_epi16((__m256i)products, _mm256_set1_epi16(1)); }
I end_group(I total, I products, I multiplier) {
  return total + (I)_mm256_madd_epi16((__m256i)products, (__m256i)(multiplier | multiplier << 16));
}
I add_zeros(I total, Halves zero, Halves sums) { return total - (I)_mm256_madd_epi16((__m256i)zero, (__m256i)sums); }

/// Signs move from the weights to the inputs; a pair of products then fits 16 bits: at most 2 * 128 * 127.
struct Int8 {
  using Sum = I;
  static constexpr int kParts = 1, kZero = 0;
  static I part(int, I weights) { return weights; }
  static I add(I total, I weights, I x) {
    const __m256i pairs =
        _mm256_maddubs_epi16(_mm256_abs_epi8((__m256i)weights), _mm256_sign_epi8((__m256i)x, (__m256i)weights));
    return total + (I)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  }
};

#include "common/compute/kernels/gemm_vector.inc"

}  // namespace

void gemm_int4_avx2(const GemmArgs& a) { gemm<Int4>(a); }
void gemm_q4_avx2(const GemmArgs& a) { gemm<Q4>(a); }
void gemm_int8_avx2(const GemmArgs& a) { gemm<Elements<Int8>>(a); }
void gemm_bf16_avx2(const GemmArgs& a) { gemm<Elements<Bf16Floats>>(a); }

}  // namespace outrider
