// Integer weights with AVX2.
#include <immintrin.h>

#include <utility>

#include "common/kernels/kernel_table.h"

namespace outrider {
namespace {

constexpr int kTogether = 1, kLanes = 8;
typedef std::int32_t I __attribute__((vector_size(4 * kLanes)));
typedef std::int16_t Halves __attribute__((vector_size(4 * kLanes)));
constexpr const KernelTable& kKernels = kAvx2Kernels;
constexpr int kRowsMax = 4;
constexpr int int4_columns(int rows) { return rows <= 2 ? 4 / rows : 1; }
constexpr int int8_columns(int rows) { return rows <= 2 ? 8 / rows : 2; }

I set(int x) { return (I)_mm256_set1_epi32(x); }
I widen(const std::uint8_t* p) { return (I)_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))); }

/// A lane's products are added up by pairs in 16 bits: at most 16 * 15 * 127.
I begin_group(int) { return I{}; }
I add_products(I products, I weights, I x) {
  return (I)((Halves)products + (Halves)_mm256_maddubs_epi16((__m256i)weights, (__m256i)x));
}
I end_group(I total, I products, I multiplier) {
  return total + (I)_mm256_madd_epi16((__m256i)products, (__m256i)(multiplier | multiplier << 16));
}
I add_zeros(I total, Halves, Halves zero, Halves sums) {
  return total - (I)_mm256_madd_epi16((__m256i)zero, (__m256i)sums);
}

/// Signs move from the weights to the inputs; then 16 bits hold a pair of products: at most 2 * 128 * 127.
I begin_row(int) { return I{}; }
I add_signed(I total, I weights, I x) {
  const __m256i pairs =
      _mm256_maddubs_epi16(_mm256_abs_epi8((__m256i)weights), _mm256_sign_epi8((__m256i)x, (__m256i)weights));
  return total + (I)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

#include "common/kernels/gemm_vector.inc"

}  // namespace

void gemm_int4_avx2(const GemmArgs& a) { gemm<Int4>(a); }
void gemm_int8_avx2(const GemmArgs& a) { gemm<Int8>(a); }

}  // namespace outrider
