// int4 weights with AVX2.
#include <immintrin.h>

#include "common/kernels/kernel_table.h"

namespace outrider {
namespace {

/// kRows rows against 8 outputs of a block: the first half, or the second (half = 1).
template <int kRows>
void multiply(const Int4Chunk* weights, std::int64_t chunks, int half, const std::int8_t* x,
              const std::int32_t* correction, const float* row_scale, std::int64_t outputs, float* y,
              std::int64_t y_stride) {
  const __m256i low_nibble = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);
  __m256 sum[kRows];
  for (int r = 0; r < kRows; ++r) sum[r] = _mm256_setzero_ps();
  for (std::int64_t c = 0; c < chunks; ++c) {
    const Int4Chunk& chunk = weights[c];
    for (int g = 0; g < 2; ++g) {
      // Pairs of products are added up in 16 bits: at most 16 * 15 * 128 = 30720, exact.
      __m256i pairs[kRows];
      for (int r = 0; r < kRows; ++r) pairs[r] = _mm256_setzero_si256();
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        const __m256i nibbles = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(chunk.nibbles[g][j] + 32 * half));
        const __m256i low = _mm256_and_si256(nibbles, low_nibble),
                      high = _mm256_and_si256(_mm256_srli_epi16(nibbles, 4), low_nibble);
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          const std::int8_t* from = x + (r * chunks + c) * 64 + 32 * g + 4 * j;
          int four, other_four;
          __builtin_memcpy(&four, from, 4);
          __builtin_memcpy(&other_four, from + 16, 4);
          pairs[r] = _mm256_add_epi16(pairs[r], _mm256_maddubs_epi16(low, _mm256_set1_epi32(four)));
          pairs[r] = _mm256_add_epi16(pairs[r], _mm256_maddubs_epi16(high, _mm256_set1_epi32(other_four)));
        }
      }
      const __m256 scale =
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(chunk.scale[g] + 8 * half)));
      for (int r = 0; r < kRows; ++r) {
        // Nibbles are unsigned, as the instruction wants them: 8 times the inputs' sum too much.
        const __m256i product = _mm256_add_epi32(_mm256_madd_epi16(pairs[r], ones),
                                                 _mm256_set1_epi32(correction[r * 2 * chunks + 2 * c + g]));
        sum[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(product), scale, sum[r]);
      }
    }
  }
  for (int r = 0; r < kRows; ++r) {
    float lanes[8];
    _mm256_storeu_ps(lanes, _mm256_mul_ps(sum[r], _mm256_set1_ps(row_scale[r])));
    __builtin_memcpy(y + r * y_stride, lanes, static_cast<std::size_t>(outputs) * sizeof(float));
  }
}

using Multiply = void (*)(const Int4Chunk*, std::int64_t, int, const std::int8_t*, const std::int32_t*, const float*,
                          std::int64_t, float*, std::int64_t);
constexpr std::int64_t kRowsMax = 4;  // accumulators of 4 rows and the operands fill the registers
constexpr Multiply kMultiply[kRowsMax] = {multiply<1>, multiply<2>, multiply<3>, multiply<4>};

}  // namespace

void gemm_int4_avx2(const Int4Args& a) {
  for (std::int64_t first = 0; first < a.outputs; first += 8) {
    const Int4Chunk* weights = a.weights + first / kInt4BlockOutputs * a.chunks;
    const std::int64_t outputs = a.outputs - first < 8 ? a.outputs - first : 8;
    // The block stays in the cache over its two halves and the rows.
    for (std::int64_t r = 0; r < a.rows;) {
      const std::int64_t passes = (a.rows - r + kRowsMax - 1) / kRowsMax, rows = (a.rows - r + passes - 1) / passes;
      kMultiply[rows - 1](weights, a.chunks, static_cast<int>(first / 8 % 2), a.x + r * a.chunks * 64,
                          a.correction + r * a.chunks * 2, a.row_scale + r, outputs, a.y + r * a.y_stride + first,
                          a.y_stride);
      r += rows;
    }
  }
}

}  // namespace outrider
