// Integer weights with AVX-512 VNNI, and bfloat16 ones with AVX-512.
#include <immintrin.h>

#include <type_traits>
#include <utility>

#include "common/compute/kernels/kernel_table.h"

namespace outrider {
namespace {

constexpr int kTogether = 1, kLanes = 16;
typedef std::int32_t I __attribute__((vector_size(4 * kLanes)));
typedef std::int16_t Halves __attribute__((vector_size(4 * kLanes)));
typedef float F __attribute__((vector_size(4 * kLanes)));
constexpr const KernelTable& kKernels = kAvx512Kernels;
constexpr int kElementRows = 12;
constexpr int element_columns(int rows) { return rows <= 6 ? 4 : 2; }

I set(int x) { return (I)_mm512_set1_epi32(x); }

constexpr bool kMultipliesNibbles = true;
constexpr int kInt4Rows = 6, kQ4Rows = 10, kQ4AtOnce = 10;
constexpr int int4_columns(int rows) { return rows <= 2 ? 4 : 2; }
F from_halves(const std::uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
F fused(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
I widen(const std::uint8_t* p) { return (I)_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }
I add_products(I products, I weights, I x) {
  return (I)_mm512_dpbusd_epi32((__m512i)products, (__m512i)weights, (__m512i)x);
}
I add_up(I products) { return products; }
I add_zeros(I total, Halves zero, Halves sums) {
  return (I)_mm512_dpwssd_epi32((__m512i)total, (__m512i)-zero, (__m512i)sums);
}

#include "common/compute/kernels/gemm_vector.inc"

}  // namespace

void gemm_int4_avx512(const GemmArgs& a) { a.rows <= kInt4Rows ? gemm<Int4>(a) : gemm<Elements<Int4Bytes>>(a); }
void gemm_q4_avx512(const GemmArgs& a) { gemm<Q4>(a); }
void gemm_int8_avx512(const GemmArgs& a) { gemm<Elements<Int8AsUnsigned>>(a); }
void gemm_bf16_avx512(const GemmArgs& a) { gemm<Elements<Bf16Floats>>(a); }

}  // namespace outrider
