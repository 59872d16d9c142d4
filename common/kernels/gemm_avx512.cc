// Integer weights with AVX-512 VNNI.
#include <immintrin.h>

#include <utility>

#include "common/kernels/kernel_table.h"

namespace outrider {
namespace {

constexpr int kTogether = 1, kLanes = 16;
typedef std::int32_t I __attribute__((vector_size(4 * kLanes)));
typedef std::int16_t Halves __attribute__((vector_size(4 * kLanes)));
constexpr const KernelTable& kKernels = kAvx512Kernels;
constexpr int kRowsMax = 6;
constexpr int int4_columns(int rows) { return rows <= 2 ? 4 : 2; }
constexpr int int8_columns(int) { return 4; }

I set(int x) { return (I)_mm512_set1_epi32(x); }
I widen(const std::uint8_t* p) { return (I)_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))); }

/// Products of nibbles less 8, which 16 bits hold: at most 32 * 8 * 127.
I begin_group(int sum) { return set(-8 * sum); }
I add_products(I products, I weights, I x) {
  return (I)_mm512_dpbusd_epi32((__m512i)products, (__m512i)weights, (__m512i)x);
}
I add_halves(I total, Halves a, Halves b) { return (I)_mm512_dpwssd_epi32((__m512i)total, (__m512i)a, (__m512i)b); }
I end_group(I total, I products, I multiplier) { return add_halves(total, (Halves)products, (Halves)multiplier); }
I add_zeros(I total, Halves multiplier, Halves zero, Halves sums) {
  return add_halves(total, 8 * multiplier - zero, sums);
}

/// The instruction wants one side without signs: weights + 128.
I begin_row(int sum) { return set(-128 * sum); }
I add_signed(I total, I weights, I x) { return add_products(total, weights ^ set(static_cast<int>(0x80808080)), x); }

#include "common/kernels/gemm_vector.inc"

}  // namespace

void gemm_int4_avx512(const GemmArgs& a) { gemm<Int4>(a); }
void gemm_int8_avx512(const GemmArgs& a) { gemm<Int8>(a); }

}  // namespace outrider
