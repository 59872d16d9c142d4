// int4 weights with AMX int8 tiles.
#include <immintrin.h>

#include <algorithm>

#include "common/kernels/kernel_table.h"

namespace outrider {
namespace {

#include "common/kernels/amx_common.inc"

/// Up to here the vector kernel is as fast or faster: it waits for the memory alone (docs/lab/int4.md).
constexpr std::int64_t kVectorRows = 8;
constexpr std::int64_t kPanelRows = 128;  // share what unpacking costs; their inputs fit the L2 cache
constexpr int kStripChunks = 8;           // two blocks' strips, the inputs of a tile and its products fit the L1 cache
constexpr std::int64_t kPrefetchChunks = 7;

using Weights = std::int8_t[2][8][64];  ///< of a chunk, as a tile wants them: [group], 16 * (nibble - 8)

/// Neighbouring chunks of a block.
struct alignas(64) Strip {
  Weights weights[kStripChunks];
  float scale[kStripChunks][2][16];
};

/// A palette for `rows` input rows. Tiles 0-3: int32 products [rows, 16]. 4, 5: inputs of a group,
/// [rows, 32]. 6, 7: its weights, [8, 16 x 4].
TileConfig tiles_for(std::int64_t rows) {
  TileConfig config{.row_bytes = {64, 64, 64, 64, 32, 32, 64, 64}};
  for (int t = 0; t < 6; ++t) config.rows[t] = static_cast<std::uint8_t>(rows);
  config.rows[6] = config.rows[7] = 8;
  return config;
}

inline void prefetch(const Int4Chunk* chunk) {
  for (std::size_t byte = 0; byte < sizeof *chunk; byte += 64)
    _mm_prefetch(reinterpret_cast<const char*>(chunk) + byte, _MM_HINT_T0);
}

inline void unpack(const Int4Chunk& chunk, Weights& weights) {
  const __m512i flip = _mm512_set1_epi8(static_cast<char>(0x88)),
                high_nibble = _mm512_set1_epi8(static_cast<char>(0xf0));
  constexpr int kFlipAndMask = 0x28;  // (a ^ b) & c
#pragma GCC unroll 2
  for (int g = 0; g < 2; ++g) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const __m512i nibbles = _mm512_loadu_si512(chunk.nibbles[g][j]);
      _mm512_store_si512(weights[g][j],
                         _mm512_ternarylogic_epi32(_mm512_slli_epi16(nibbles, 4), flip, high_nibble, kFlipAndMask));
      _mm512_store_si512(weights[g][4 + j], _mm512_ternarylogic_epi32(nibbles, flip, high_nibble, kFlipAndMask));
    }
  }
}

/// A sixteenth of the group's scales, which is exact.
inline __m512 scale(const Int4Chunk& chunk, int group) {
  return _mm512_mul_ps(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(chunk.scale[group]))),
                       _mm512_set1_ps(1.0f / 16));
}

inline void write(const Int4Args& a, std::int64_t row, std::int64_t block, __m512 sum) {
  const std::int64_t left = a.outputs - kInt4BlockOutputs * block;
  const auto outputs = static_cast<__mmask16>(left >= kInt4BlockOutputs ? 0xffff : (1 << left) - 1);
  _mm512_mask_storeu_ps(a.y + row * a.y_stride + kInt4BlockOutputs * block, outputs,
                        _mm512_mul_ps(sum, _mm512_set1_ps(a.row_scale[row])));
}

/// kRows rows against kBlocks blocks, which are unpacked on the way: they come from memory, which this just keeps up
/// with.
template <int kRows, int kBlocks>
void multiply(const Int4Args& a) {
  const std::int64_t chunks = a.chunks;
  alignas(64) Weights unpacked[2][kBlocks];  // two: the next chunk's stores need not wait for this one's tiles
  alignas(64) std::int32_t product[2 * kBlocks][kAmxRows][16];
  __m512 sum[kBlocks][kRows];
  for (int b = 0; b < kBlocks; ++b) {
    for (int r = 0; r < kRows; ++r) sum[b][r] = _mm512_setzero_ps();
  }
  for (std::int64_t c = 0; c < chunks; ++c) {
    auto& weights = unpacked[c % 2];
    // After a block's last chunk come those of the block that the next call has in its place.
    const std::int64_t ahead = kPrefetchChunks + (c + kPrefetchChunks < chunks ? 0 : (kBlocks - 1) * chunks);
#pragma GCC unroll 2
    for (int b = 0; b < kBlocks; ++b) {
      const Int4Chunk& chunk = a.weights[b * chunks + c];
      prefetch(&chunk + ahead);
      unpack(chunk, weights[b]);
    }
    prefetch_tile(a.x + (c + 1) * kInt4Inputs, chunks * kInt4Inputs, kRows);
    finish_stores(weights);
    _tile_loadd(4, a.x + c * 64, chunks * 64);
    _tile_loadd(5, a.x + c * 64 + 32, chunks * 64);
    _tile_zero(0);
    _tile_loadd(6, weights[0][0], 64);
    _tile_dpbssd(0, 4, 6);
    _tile_zero(1);
    _tile_loadd(7, weights[0][1], 64);
    _tile_dpbssd(1, 5, 7);
    if constexpr (kBlocks == 2) {
      _tile_zero(2);
      _tile_loadd(6, weights[1][0], 64);
      _tile_dpbssd(2, 4, 6);
      _tile_zero(3);
      _tile_loadd(7, weights[1][1], 64);
      _tile_dpbssd(3, 5, 7);
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
        const __m512 factor = scale(a.weights[b * chunks + c], g);
#pragma GCC unroll 16
        for (int r = 0; r < kRows; ++r) {
          sum[b][r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_load_si512(product[2 * b + g][r])), factor, sum[b][r]);
        }
      }
    }
  }
  for (int b = 0; b < kBlocks; ++b) {
    for (int r = 0; r < kRows; ++r) write(a, r, b, sum[b][r]);
  }
}

/// Tile `tile` (0 .. 3) = a group's inputs x its weights.
inline void start(int tile, const std::int8_t* x, std::int64_t row_bytes, const std::int8_t (&weights)[8][64]) {
  if (tile % 2 == 0) {
    _tile_loadd(4, x, row_bytes);
    _tile_loadd(6, weights, 64);
  } else {
    _tile_loadd(5, x, row_bytes);
    _tile_loadd(7, weights, 64);
  }
// The tiles' numbers are part of the instruction.
#define START(sum, inputs, weights)     \
  case sum:                             \
    _tile_zero(sum);                    \
    _tile_dpbssd(sum, inputs, weights); \
    return
  switch (tile) {
    START(0, 4, 6);
    START(1, 5, 7);
    START(2, 4, 6);
    START(3, 5, 7);
  }
#undef START
}

inline void finish(int tile, std::int32_t (&product)[kAmxRows][16]) {
  switch (tile) {
    case 0: _tile_stored(0, product, 64); return;
    case 1: _tile_stored(1, product, 64); return;
    case 2: _tile_stored(2, product, 64); return;
    case 3: _tile_stored(3, product, 64); return;
  }
}

/// sum += kRows rows times the first kChunks of a strip. A product is stored two groups after its start and added two
/// groups later, so that nothing waits for it. To fetch meanwhile, or null: `ahead`, as many chunks; `next_x`, another
/// tile's inputs.
template <int kRows, int kChunks>
void multiply_strip(const std::int8_t* x, std::int64_t row_bytes, const Strip& strip, const Int4Chunk* ahead,
                    const std::int8_t* next_x, float (*sum)[16]) {
  constexpr int kGroups = 2 * kChunks;
  alignas(64) std::int32_t product[4][kAmxRows][16];
  __m512 total[kRows];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) total[r] = _mm512_load_ps(sum[r]);
#pragma GCC unroll 20
  for (int g = 0; g < kGroups + 4; ++g) {
    if (g < kGroups) {
      start(g % 4, x + g * kInt4Group, row_bytes, strip.weights[g / 2][g % 2]);
      if (g % 2 == 0 && ahead != nullptr) prefetch(ahead + g / 2);
      if (g % 2 == 0 && next_x != nullptr) prefetch_tile(next_x + g * kInt4Group, row_bytes, kRows);
    }
    if (g >= 2 && g < kGroups + 2) finish((g - 2) % 4, product[(g - 2) % 4]);
    if (g >= 4) {
      const __m512 factor = _mm512_load_ps(strip.scale[(g - 4) / 2][g % 2]);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r)
        total[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_load_si512(product[g % 4][r])), factor, total[r]);
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) _mm512_store_ps(sum[r], total[r]);
}

/// Rows in `tiles` of kRows each, against strips that are unpacked once for all of them. The last tile begins early and
/// does some rows again.
template <int kRows>
void multiply_panel(const Int4Args& a, std::int64_t first, std::int64_t rows, std::int64_t tiles) {
  const auto row = [&](std::int64_t tile) { return first + std::min(tile * kRows, rows - kRows); };
  const std::int64_t row_bytes = a.chunks * kInt4Inputs;
  Strip strip[2];
  alignas(64) float sum[2][kPanelRows][16] = {};
  // The chunks that do not fill a strip go one by one.
  for (std::int64_t c = 0; c < a.chunks;) {
    const std::int64_t chunks = a.chunks - c >= kStripChunks ? kStripChunks : 1;
    for (std::int64_t b = 0; b < a.blocks; ++b) {
      for (std::int64_t i = 0; i < chunks; ++i) {
        const Int4Chunk& chunk = a.weights[b * a.chunks + c + i];
        unpack(chunk, strip[b].weights[i]);
        for (int g = 0; g < 2; ++g) _mm512_store_ps(strip[b].scale[i][g], scale(chunk, g));
      }
    }
    finish_stores(strip);
    for (std::int64_t t = 0; t < tiles; ++t) {
      const std::int8_t *x = a.x + row(t) * row_bytes + c * kInt4Inputs,
                        *next_x = t + 1 < tiles ? x + (row(t + 1) - row(t)) * row_bytes : nullptr;
      for (std::int64_t b = 0; b < a.blocks; ++b) {
        const Int4Chunk* ahead = t == 0 ? a.weights + b * a.chunks + c + chunks : nullptr;
        (chunks == 1 ? multiply_strip<kRows, 1> : multiply_strip<kRows, kStripChunks>)(x, row_bytes, strip[b], ahead,
                                                                                       b == 0 ? next_x : nullptr,
                                                                                       sum[b] + t * kRows);
      }
    }
    c += chunks;
  }
  for (std::int64_t b = 0; b < a.blocks; ++b) {
    for (std::int64_t t = 0; t < tiles; ++t) {
      for (std::int64_t r = 0; r < kRows; ++r) write(a, row(t) + r, b, _mm512_load_ps(sum[b][t * kRows + r]));
    }
  }
}

// By rows of a tile, from 9: neither kernel gets fewer.
constexpr int kRowsMin = 9;
constexpr decltype(&multiply<9, 1>) kMultiply[][2] = {
    {multiply<9, 1>, multiply<9, 2>},   {multiply<10, 1>, multiply<10, 2>}, {multiply<11, 1>, multiply<11, 2>},
    {multiply<12, 1>, multiply<12, 2>}, {multiply<13, 1>, multiply<13, 2>}, {multiply<14, 1>, multiply<14, 2>},
    {multiply<15, 1>, multiply<15, 2>}, {multiply<16, 1>, multiply<16, 2>}};
constexpr decltype(&multiply_panel<9>) kMultiplyPanel[] = {multiply_panel<9>,  multiply_panel<10>, multiply_panel<11>,
                                                           multiply_panel<12>, multiply_panel<13>, multiply_panel<14>,
                                                           multiply_panel<15>, multiply_panel<16>};

}  // namespace

void gemm_int4_amx(const Int4Args& a) {
  if (a.rows <= kVectorRows) return gemm_int4_avx512(a);
  // Panels of one height, in tiles of one height, so that the tiles are configured once; the last panel begins early.
  const std::int64_t panels = divide_up(a.rows, kPanelRows), panel_rows = divide_up(a.rows, panels);
  const std::int64_t tiles = divide_up(panel_rows, kAmxRows), tile_rows = divide_up(panel_rows, tiles);
  configure_tiles(tiles_for(tile_rows));
  if (tiles == 1) {
    kMultiply[tile_rows - kRowsMin][a.blocks - 1](a);
  } else {
    for (std::int64_t p = 0; p < panels; ++p) {
      kMultiplyPanel[tile_rows - kRowsMin](a, std::min(p * panel_rows, a.rows - panel_rows), panel_rows, tiles);
    }
  }
  _tile_release();
}

}  // namespace outrider
