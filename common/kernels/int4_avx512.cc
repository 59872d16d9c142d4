// int4 weights with AVX-512 VNNI.
#include <immintrin.h>

#include "common/kernels/kernel_table.h"

namespace outrider {
namespace {

/// To fetch ahead into the L1 cache, and further ahead into the L2, which has more reads under way.
constexpr std::int64_t kNearChunks = 4, kFarChunks = 16;

inline void prefetch(const Int4Chunk* near, const Int4Chunk* far) {
  for (std::size_t byte = 0; byte < sizeof *near; byte += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(near) + byte, _MM_HINT_T0);
    _mm_prefetch(reinterpret_cast<const char*>(far) + byte, _MM_HINT_T1);
  }
}

/// kRows rows against kBlocks blocks. Two blocks share what it takes to spread the inputs over a register, which is as
/// much work as the products are. Meanwhile `lines` cache lines a chunk are fetched from `ahead`; if none, the blocks'
/// own chunks.
template <int kRows, int kBlocks>
void multiply(const Int4Args& a, std::int64_t first_row, const char* ahead, std::int64_t lines) {
  const __m512i low_nibble = _mm512_set1_epi8(15);
  const std::int64_t chunks = a.chunks;
  const std::int8_t* x = a.x + first_row * chunks * 64;
  const std::int32_t* correction = a.correction + first_row * chunks * 2;
  __m512 sum[kBlocks][kRows];
  for (int b = 0; b < kBlocks; ++b) {
    for (int r = 0; r < kRows; ++r) sum[b][r] = _mm512_setzero_ps();
  }
  for (std::int64_t c = 0; c < chunks; ++c, x += 64, correction += 2) {
    if (lines == 0) {
      // After a block's last chunk come those of the block that the next call has in its place.
      const auto later = [&](std::int64_t by) {
        return a.weights + c + by + (c + by < chunks ? 0 : (kBlocks - 1) * chunks);
      };
      for (int b = 0; b < kBlocks; ++b) prefetch(later(kNearChunks) + b * chunks, later(kFarChunks) + b * chunks);
    }
    for (std::int64_t line = 0; line < lines; ++line, ahead += 64) _mm_prefetch(ahead, _MM_HINT_T0);
#pragma GCC unroll 2
    for (int g = 0; g < 2; ++g) {
      // Nibbles are unsigned, as the instruction wants them: 8 times the inputs' sum too much.
      __m512i product[kBlocks][kRows];
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        for (int b = 0; b < kBlocks; ++b) product[b][r] = _mm512_set1_epi32(correction[r * 2 * chunks + g]);
      }
#pragma GCC unroll 4
      for (int j = 0; j < 4; ++j) {
        __m512i low[kBlocks], high[kBlocks];
        for (int b = 0; b < kBlocks; ++b) {
          const __m512i nibbles = _mm512_loadu_si512(a.weights[b * chunks + c].nibbles[g][j]);
          low[b] = _mm512_and_si512(nibbles, low_nibble);
          high[b] = _mm512_and_si512(_mm512_srli_epi16(nibbles, 4), low_nibble);
        }
#pragma GCC unroll 8
        for (int r = 0; r < kRows; ++r) {
          const std::int8_t* from = x + r * chunks * 64 + 32 * g + 4 * j;
          int four, other_four;
          __builtin_memcpy(&four, from, 4);
          __builtin_memcpy(&other_four, from + 16, 4);
          for (int b = 0; b < kBlocks; ++b)
            product[b][r] = _mm512_dpbusd_epi32(product[b][r], low[b], _mm512_set1_epi32(four));
          for (int b = 0; b < kBlocks; ++b)
            product[b][r] = _mm512_dpbusd_epi32(product[b][r], high[b], _mm512_set1_epi32(other_four));
        }
      }
      for (int b = 0; b < kBlocks; ++b) {
        const __m512 scale =
            _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(a.weights[b * chunks + c].scale[g])));
        for (int r = 0; r < kRows; ++r)
          sum[b][r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(product[b][r]), scale, sum[b][r]);
      }
    }
  }
  for (int b = 0; b < kBlocks; ++b) {
    const std::int64_t left = a.outputs - 16 * b;
    const auto outputs = static_cast<__mmask16>(left >= 16 ? 0xffff : (1 << left) - 1);
    for (int r = 0; r < kRows; ++r) {
      _mm512_mask_storeu_ps(a.y + (first_row + r) * a.y_stride + 16 * b, outputs,
                            _mm512_mul_ps(sum[b][r], _mm512_set1_ps(a.row_scale[first_row + r])));
    }
  }
}

using Multiply = void (*)(const Int4Args&, std::int64_t, const char*, std::int64_t);
constexpr std::int64_t kRowsMax = 6;  // accumulators of 6 rows by two blocks and the operands fill the registers
constexpr Multiply kOneBlock[] = {multiply<1, 1>, multiply<2, 1>, multiply<3, 1>,
                                  multiply<4, 1>, multiply<5, 1>, multiply<6, 1>};
constexpr Multiply kTwoBlocks[] = {multiply<1, 2>, multiply<2, 2>, multiply<3, 2>,
                                   multiply<4, 2>, multiply<5, 2>, multiply<6, 2>};

}  // namespace

void gemm_int4_avx512(const Int4Args& a) {
  // With more than one pass over the rows the next blocks come while these are multiplied, each pass fetching its part:
  // the memory never waits for a second pass. With one, near and far fetches are up to 1.2 times as fast
  // (docs/lab/amx.md, "Two fetches").
  const std::int64_t passes = (a.rows + kRowsMax - 1) / kRowsMax;
  const std::int64_t chunk_lines = static_cast<std::int64_t>(sizeof(Int4Chunk)) / 64,
                     lines = passes == 1 ? 0 : (a.blocks * chunk_lines + passes - 1) / passes;
  const char* ahead = reinterpret_cast<const char*>(a.weights + a.blocks * a.chunks);
  for (std::int64_t p = 0, r = 0; p < passes; ++p) {
    const std::int64_t rows = (a.rows - r + passes - p - 1) / (passes - p);
    (a.blocks == 2 ? kTwoBlocks : kOneBlock)[rows - 1](a, r, ahead + p * a.chunks * lines * 64, lines);
    r += rows;
  }
}

}  // namespace outrider
