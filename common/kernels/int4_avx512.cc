// int4 weights with AVX-512 VNNI.
#include <immintrin.h>

#include "common/kernels/kernel_table.h"

namespace outrider {
namespace {

/// Beyond what the hardware prefetcher has under way (design: 0.86 of the bandwidth with one row).
constexpr std::int64_t kPrefetchBytes = 4096;

/// kRows rows against one block.
template <int kRows>
void multiply(const Int4Chunk* weights, std::int64_t chunks, const std::int8_t* x, const std::int32_t* correction, const float* row_scale,
              __mmask16 outputs, float* y, std::int64_t y_stride) {
  const __m512i low_nibble = _mm512_set1_epi8(15);
  __m512 sum[kRows];
  for (int r = 0; r < kRows; ++r) sum[r] = _mm512_setzero_ps();
  for (std::int64_t c = 0; c < chunks; ++c) {
    const Int4Chunk& chunk = weights[c];
    const char* ahead = reinterpret_cast<const char*>(&chunk) + kPrefetchBytes;
    for (int line = 0; line < 9; ++line) _mm_prefetch(ahead + 64 * line, _MM_HINT_T0);
#pragma GCC unroll 2
    for (int g = 0; g < 2; ++g) {
      // Nibbles are unsigned, as the instruction wants them: 8 times the inputs' sum too much.
      __m512i product[kRows];
      for (int r = 0; r < kRows; ++r) product[r] = _mm512_set1_epi32(correction[r * 2 * chunks + 2 * c + g]);
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        const __m512i nibbles = _mm512_loadu_si512(chunk.nibbles[g][j]);
        const __m512i low = _mm512_and_si512(nibbles, low_nibble), high = _mm512_and_si512(_mm512_srli_epi16(nibbles, 4), low_nibble);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          const std::int8_t* from = x + (r * chunks + c) * 64 + 32 * g + 4 * j;
          int four, other_four;
          __builtin_memcpy(&four, from, 4);
          __builtin_memcpy(&other_four, from + 16, 4);
          product[r] = _mm512_dpbusd_epi32(product[r], low, _mm512_set1_epi32(four));
          product[r] = _mm512_dpbusd_epi32(product[r], high, _mm512_set1_epi32(other_four));
        }
      }
      const __m512 scale = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(chunk.scale[g])));
      for (int r = 0; r < kRows; ++r) sum[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(product[r]), scale, sum[r]);
    }
  }
  for (int r = 0; r < kRows; ++r) _mm512_mask_storeu_ps(y + r * y_stride, outputs, _mm512_mul_ps(sum[r], _mm512_set1_ps(row_scale[r])));
}

using Multiply = void (*)(const Int4Chunk*, std::int64_t, const std::int8_t*, const std::int32_t*, const float*, __mmask16, float*, std::int64_t);
constexpr std::int64_t kRowsMax = 8;  // accumulators of 8 rows and the operands fill the registers
constexpr Multiply kMultiply[kRowsMax] = {multiply<1>, multiply<2>, multiply<3>, multiply<4>, multiply<5>, multiply<6>, multiply<7>, multiply<8>};

}  // namespace

void gemm_int4_avx512(const Int4Args& a) {
  for (std::int64_t b = 0; b < a.blocks; ++b) {
    const std::int64_t left = a.outputs - 16 * b;
    const auto outputs = static_cast<__mmask16>(left >= 16 ? 0xffff : (1 << left) - 1);
    // The block stays in the cache over the rows.
    for (std::int64_t r = 0; r < a.rows;) {
      const std::int64_t passes = (a.rows - r + kRowsMax - 1) / kRowsMax, rows = (a.rows - r + passes - 1) / passes;
      kMultiply[rows - 1](a.weights + b * a.chunks, a.chunks, a.x + r * a.chunks * 64, a.correction + r * a.chunks * 2, a.row_scale + r, outputs,
                          a.y + r * a.y_stride + 16 * b, a.y_stride);
      r += rows;
    }
  }
}

}  // namespace outrider
