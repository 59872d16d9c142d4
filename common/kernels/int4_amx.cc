// int4 weights with AMX int8 tiles.
#include <immintrin.h>

#include "common/kernels/kernel_table.h"

namespace outrider {
namespace {

constexpr std::int64_t kPrefetchBytes = 4096;
constexpr std::int64_t kRowsMax = 16;  // of a tile
/// Up to here the vector kernel is as fast or faster: it waits for the memory alone (docs/performance.md).
constexpr std::int64_t kVectorRows = 8;

/// g++ 12's tile intrinsics do not say what memory they read: stores before this stay before them.
void finish_stores(const void* memory) { asm volatile("" : : "r"(memory) : "memory"); }

/// A palette for `rows` input rows. Tiles 0-3: int32 products [rows, 16]. 4, 5: inputs of a group,
/// [rows, 32]. 6, 7: its weights, [8, 16 x 4].
void configure_tiles(std::int64_t rows) {
  struct alignas(64) {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t row_bytes[16] = {64, 64, 64, 64, 32, 32, 64, 64};
    std::uint8_t rows[16] = {};
  } config;
  for (int t = 0; t < 6; ++t) config.rows[t] = static_cast<std::uint8_t>(rows);
  config.rows[6] = config.rows[7] = 8;
  finish_stores(&config);
  _tile_loadconfig(&config);
}

/// The products of kRows rows with the groups of a chunk of each block, then their scaled sums.
template <int kRows, int kBlocks>
void multiply(const Int4Args& a, std::int64_t first_row) {
  const std::int64_t chunks = a.chunks;
  const std::int8_t* x = a.x + first_row * chunks * 64;
  const std::int32_t* correction = a.correction + first_row * chunks * 2;
  const __m512i low_nibble = _mm512_set1_epi8(15);
  alignas(64) std::uint8_t unpacked[2][2 * kBlocks][8][64];  // two: the next chunk's stores need not wait for this one's tiles
  alignas(64) std::int32_t product[2 * kBlocks][kRowsMax][16];
  __m512 sum[kBlocks][kRows];
  for (int b = 0; b < kBlocks; ++b) {
    for (int r = 0; r < kRows; ++r) sum[b][r] = _mm512_setzero_ps();
  }
  for (std::int64_t c = 0; c < chunks; ++c) {
    auto& bytes = unpacked[c % 2];
#pragma GCC unroll 2
    for (int b = 0; b < kBlocks; ++b) {
      const Int4Chunk& chunk = a.weights[b * chunks + c];
      const char* ahead = reinterpret_cast<const char*>(&chunk) + kPrefetchBytes;
      for (int line = 0; line < 9; ++line) _mm_prefetch(ahead + 64 * line, _MM_HINT_T0);
#pragma GCC unroll 2
      for (int g = 0; g < 2; ++g) {
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) {
          const __m512i nibbles = _mm512_loadu_si512(chunk.nibbles[g][j]);
          _mm512_store_si512(bytes[2 * b + g][j], _mm512_and_si512(nibbles, low_nibble));
          _mm512_store_si512(bytes[2 * b + g][4 + j], _mm512_and_si512(_mm512_srli_epi16(nibbles, 4), low_nibble));
        }
      }
    }
    finish_stores(bytes);
    // Signed inputs by unsigned nibbles.
    _tile_loadd(4, x + c * 64, chunks * 64);
    _tile_loadd(5, x + c * 64 + 32, chunks * 64);
    _tile_zero(0);
    _tile_loadd(6, bytes[0], 64);
    _tile_dpbsud(0, 4, 6);
    _tile_zero(1);
    _tile_loadd(7, bytes[1], 64);
    _tile_dpbsud(1, 5, 7);
    if constexpr (kBlocks == 2) {
      _tile_zero(2);
      _tile_loadd(6, bytes[2], 64);
      _tile_dpbsud(2, 4, 6);
      _tile_zero(3);
      _tile_loadd(7, bytes[3], 64);
      _tile_dpbsud(3, 5, 7);
    }
    _tile_stored(0, product[0], 64);
    _tile_stored(1, product[1], 64);
    if constexpr (kBlocks == 2) {
      _tile_stored(2, product[2], 64);
      _tile_stored(3, product[3], 64);
    }
#pragma GCC unroll 2
    for (int b = 0; b < kBlocks; ++b) {
#pragma GCC unroll 2
      for (int g = 0; g < 2; ++g) {
        const __m512 scale = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(a.weights[b * chunks + c].scale[g])));
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
          const __m512i exact = _mm512_add_epi32(_mm512_load_si512(product[2 * b + g][r]), _mm512_set1_epi32(correction[r * 2 * chunks + 2 * c + g]));
          sum[b][r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(exact), scale, sum[b][r]);
        }
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

using Multiply = void (*)(const Int4Args&, std::int64_t);
constexpr Multiply kOneBlock[kRowsMax] = {multiply<1, 1>,  multiply<2, 1>,  multiply<3, 1>,  multiply<4, 1>, multiply<5, 1>,  multiply<6, 1>,
                                          multiply<7, 1>,  multiply<8, 1>,  multiply<9, 1>,  multiply<10, 1>, multiply<11, 1>, multiply<12, 1>,
                                          multiply<13, 1>, multiply<14, 1>, multiply<15, 1>, multiply<16, 1>};
constexpr Multiply kTwoBlocks[kRowsMax] = {multiply<1, 2>,  multiply<2, 2>,  multiply<3, 2>,  multiply<4, 2>, multiply<5, 2>,  multiply<6, 2>,
                                           multiply<7, 2>,  multiply<8, 2>,  multiply<9, 2>,  multiply<10, 2>, multiply<11, 2>, multiply<12, 2>,
                                           multiply<13, 2>, multiply<14, 2>, multiply<15, 2>, multiply<16, 2>};

}  // namespace

void gemm_int4_amx(const Int4Args& a) {
  if (a.rows <= kVectorRows) return gemm_int4_avx512(a);
  std::int64_t configured = 0;
  for (std::int64_t r = 0; r < a.rows; r += kRowsMax) {
    const std::int64_t rows = a.rows - r < kRowsMax ? a.rows - r : kRowsMax;
    if (rows != configured) configure_tiles(rows);
    configured = rows;
    (a.blocks == 2 ? kTwoBlocks : kOneBlock)[rows - 1](a, r);
  }
  _tile_release();
}

}  // namespace outrider
