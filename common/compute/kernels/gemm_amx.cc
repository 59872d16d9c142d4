// int8, bfloat16, int4 and q4 weights with AMX. oneDNN's kernel reads the first two more slowly, and again for every 16
// or 64 rows (docs/lab/amx.md). int4 is expanded to int8 on the fly.
#include <immintrin.h>

#include <cstring>
#include <type_traits>

#include "common/compute/kernels/kernel_table.h"

namespace outrider {
namespace {

#include "common/compute/kernels/amx_common.inc"

static_assert(kBlockOutputs == 4 * kTileRows);
constexpr std::int64_t kInputBytes = kTileRows * kStepBytes;  ///< of a tile of inputs
constexpr std::int64_t kGroupBytes = 4 * kBlockOutputs;       ///< four bytes of inputs of every output
constexpr std::int64_t kStep = kStepBytes / 4 * kGroupBytes;  ///< bytes of a block's weights at a step

/// Sums of integer products are exact; those of bfloat16 grow step by step, within a step in the instruction's order.
template <typename Weight>
using Sum = std::conditional_t<std::is_same_v<Weight, Bf16>, float, std::int32_t>;

// Tile numbers must be immediate operands.
#define MULTIPLY(sum, inputs, weights)        \
  if constexpr (std::is_same_v<Weight, Bf16>) \
    _tile_dpbf16ps(sum, inputs, weights);     \
  else                                        \
    _tile_dpbssd(sum, inputs, weights)

void write(const GemmArgs& a, std::int64_t row, const std::int32_t (&sums)[kBlockOutputs]) {
  kAvx512Kernels.dequantize(sums, a.row_scale[row], a.column_scale, a.outputs, a.y + row * a.y_stride);
}
void write(const GemmArgs& a, std::int64_t row, const float (&sums)[kBlockOutputs]) {
  std::memcpy(a.y + row * a.y_stride, sums, static_cast<std::size_t>(a.outputs) * sizeof(float));
}

/// The tiles of a block's weights in multiplication order: for each step those of `columns` times 16 outputs from
/// output `first` on, for all rows from `row` on. Prefetches later ones meanwhile: tile loads alone would wait for
/// every line in turn.
template <typename Weight>
class WeightTiles {
 public:
  static constexpr std::int64_t kRowBytes = kGroupBytes;  ///< from one row of a tile to the next

  WeightTiles(const GemmArgs& a, std::int64_t, std::int64_t first, std::int64_t columns)
      : tile_(a.weights + 4 * first), columns_(columns) {}

  const std::byte* tile() const { return tile_; }

  /// Prefetches the next step into the L1 cache; if all of a step is read, a later one into the L2, which has more
  /// reads in flight.
  void next() {
    constexpr std::int64_t kFarSteps = 8;
    prefetch_tile(tile_ + kStep, kRowBytes);
    if (columns_ == kBlockOutputs / kTileRows) prefetch_tile<_MM_HINT_T1>(tile_ + kFarSteps * kStep, kRowBytes);
    tile_ += 4 * kTileRows;
    if (++column_ == columns_) {
      column_ = 0;
      tile_ += kStep - columns_ * 4 * kTileRows;
    }
  }

 private:
  const std::byte* tile_;
  std::int64_t columns_, column_ = 0;
};

/// Expands 16 outputs of a chunk to an int8 tile. A 16-bit product of two nibbles and their multiplier does both:
/// nothing carries, as 15 * 15 < 256. Prefetches the same of later steps meanwhile.
inline void expand_tile(const Int4Chunk& chunk, int half, std::byte* to) {
  constexpr std::int64_t kChunksAStep = 2, kNear = 3 * kChunksAStep, kFar = 12 * kChunksAStep;
  const __m512i low_nibble = _mm512_set1_epi8(15);
  // int4_multiplier, and int4_zero in both bytes: of the outputs for one group of inputs, then for the other.
  const __m512i bytes = _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(chunk.group[half])));
  const __m512i k = _mm512_and_si512(bytes, _mm512_set1_epi16(15));
  const __m512i place = _mm512_add_epi16(_mm512_srli_epi16(bytes, 4), _mm512_set1_epi16(23));
  const __m512i z = _mm512_srli_epi16(_mm512_add_epi16(_mm512_mullo_epi16(k, place), _mm512_set1_epi16(3)), 2);
  const __m512i zz = _mm512_or_si512(z, _mm512_slli_epi16(z, 8));
  __m512i twice = _mm512_set_epi16(15, 15, 14, 14, 13, 13, 12, 12, 11, 11, 10, 10, 9, 9, 8, 8, 7, 7, 6, 6, 5, 5, 4, 4,
                                   3, 3, 2, 2, 1, 1, 0, 0);
  _mm_prefetch(&(&chunk)[kNear].group[half], _MM_HINT_T0);
  _mm_prefetch(&(&chunk)[kFar].group[half], _MM_HINT_T1);
#pragma GCC unroll 2
  for (int g = 0; g < 2; ++g) {
    const __m512i multiplier = _mm512_permutexvar_epi16(twice, k), zero = _mm512_permutexvar_epi16(twice, zz),
                  high_multiplier = _mm512_slli_epi16(multiplier, 12);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      _mm_prefetch((&chunk)[kNear].nibbles[half][g][j], _MM_HINT_T0);
      _mm_prefetch((&chunk)[kFar].nibbles[half][g][j], _MM_HINT_T1);
      const __m512i pair = _mm512_loadu_si512(chunk.nibbles[half][g][j]), low = _mm512_and_si512(pair, low_nibble),
                    high_times_16 = _mm512_andnot_si512(low_nibble, pair);
      std::byte* const row = to + (8 * g + j) * kStepBytes;
      _mm512_store_si512(row, _mm512_sub_epi8(_mm512_mullo_epi16(low, multiplier), zero));
      _mm512_store_si512(row + 4 * kStepBytes,
                         _mm512_sub_epi8(_mm512_mulhi_epu16(high_times_16, high_multiplier), zero));
      finish_stores(to);  // otherwise the compiler would prefetch all lines at once, and everything else would wait
    }
    twice = _mm512_add_epi16(twice, _mm512_set1_epi16(16));
  }
}

/// int4 is expanded to int8 two tiles ahead, since a load of data that is still being stored would wait; into a ring
/// that the L1 cache can hold, or into all tiles if more rows follow.
template <>
class WeightTiles<Int4Chunk> {
 public:
  static constexpr std::int64_t kRowBytes = kStepBytes;

  WeightTiles(const GemmArgs& a, std::int64_t row, std::int64_t first, std::int64_t columns)
      : chunk_(reinterpret_cast<const Int4Chunk*>(a.weights) + first / kInt4ChunkOutputs),
        chunk_step_(kBlockOutputs / kTileRows / columns),
        left_(row == 0 ? a.steps * columns : 0),
        tiles_(a.expanded),
        mask_(kRing - 1) {
    if (a.rows > 2 * kTileRows) {
      tiles_ += first * a.steps * kStepBytes;
      mask_ = -1;
    }
    expand();
    expand();
  }

  const std::byte* tile() const { return tiles_ + (at_ & mask_); }

  void next() {
    at_ += kTileBytes;
    if (left_ > 0)
      expand();
    else
      prefetch_tile(tile() + kTileBytes, kRowBytes);
  }

 private:
  static constexpr std::int64_t kTileBytes = kTileRows * kStepBytes, kRing = 4 * kTileBytes;

  void expand() {
    if (left_ == 0) return;
    expand_tile(*chunk_, half_, tiles_ + (to_ & mask_));
    to_ += kTileBytes;
    chunk_ += half_ * chunk_step_;
    half_ ^= 1;
    --left_;
  }

  const Int4Chunk* chunk_;
  std::int64_t chunk_step_, left_;  ///< tiles to expand
  int half_ = 0;
  std::byte* tiles_;
  std::int64_t mask_, at_ = 0, to_ = 0;
};

/// Multiplies one tile of rows: reads each step of the weights once, in memory order.
template <typename Weight>
void multiply_few(const GemmArgs& a) {
  TileConfig config;
  for (int t = 0; t < 5; ++t) config.rows[t] = static_cast<std::uint8_t>(a.rows);
  // 0 to 3: sums [rows, 16]. 4: inputs [rows, 64 bytes]. 5 to 7: weights [16, 16 outputs x 4 bytes]
  configure_tiles(config);
  zero_sums();
  WeightTiles<Weight> weights(a, 0, 0, kBlockOutputs / kTileRows);
  const std::byte* x = a.x;
  for (std::int64_t step = 0; step < a.steps; ++step, x += kInputBytes) {
    _tile_loadd(4, x, kStepBytes);
    _tile_loadd(5, weights.tile(), weights.kRowBytes);
    weights.next();
    MULTIPLY(0, 4, 5);
    _tile_loadd(6, weights.tile(), weights.kRowBytes);
    weights.next();
    MULTIPLY(1, 4, 6);
    _tile_loadd(7, weights.tile(), weights.kRowBytes);
    weights.next();
    MULTIPLY(2, 4, 7);
    _tile_loadd(5, weights.tile(), weights.kRowBytes);
    weights.next();
    MULTIPLY(3, 4, 5);
  }
  alignas(64) Sum<Weight> sums[kTileRows][kBlockOutputs];
  _tile_stored(0, &sums[0][0], sizeof sums[0]);
  _tile_stored(1, &sums[0][kTileRows], sizeof sums[0]);
  _tile_stored(2, &sums[0][2 * kTileRows], sizeof sums[0]);
  _tile_stored(3, &sums[0][3 * kTileRows], sizeof sums[0]);
  finish_stores(sums);
  for (std::int64_t r = 0; r < a.rows; ++r) write(a, r, sums[r]);
}

/// Multiplies two by two tiles, so that each loaded tile is used twice. The first rows expand int4 for all.
template <typename Weight>
void multiply_many(const GemmArgs& a) {
  // 0 to 3: sums [16, 16]. 4, 5: inputs [16 rows, 64 bytes]. 6, 7: weights [16, 16 outputs x 4 bytes]
  configure_tiles();
  for (std::int64_t r = 0; r < a.rows; r += 2 * kTileRows) {
    alignas(64) Sum<Weight> sums[2 * kTileRows][kBlockOutputs];
    for (std::int64_t o = 0; o < kBlockOutputs; o += 2 * kTileRows) {
      zero_sums();
      WeightTiles<Weight> weights(a, r, o, 2);
      const std::byte *upper = a.x + r * a.steps * kStepBytes, *lower = upper + a.steps * kInputBytes;
      for (std::int64_t step = 0; step < a.steps; ++step) {
        _tile_loadd(4, upper, kStepBytes);
        _tile_loadd(6, weights.tile(), weights.kRowBytes);
        MULTIPLY(0, 4, 6);
        prefetch_tile(upper += kInputBytes, kStepBytes);
        weights.next();
        _tile_loadd(7, weights.tile(), weights.kRowBytes);
        MULTIPLY(1, 4, 7);
        prefetch_tile(lower + kInputBytes, kStepBytes);
        weights.next();
        _tile_loadd(5, lower, kStepBytes);
        lower += kInputBytes;
        MULTIPLY(2, 5, 6);
        MULTIPLY(3, 5, 7);
      }
      _tile_stored(0, &sums[0][o], sizeof sums[0]);
      _tile_stored(1, &sums[0][o + kTileRows], sizeof sums[0]);
      _tile_stored(2, &sums[kTileRows][o], sizeof sums[0]);
      _tile_stored(3, &sums[kTileRows][o + kTileRows], sizeof sums[0]);
    }
    finish_stores(sums);
    for (std::int64_t i = 0; i < 2 * kTileRows && r + i < a.rows; ++i) write(a, r + i, sums[i]);
  }
}

#undef MULTIPLY

/// A group's nibbles as bytes, a tile of eight rows for each 16 outputs, and its scales.
struct Q4Tiles {
  alignas(64) std::uint8_t nibbles[4][8][64];
  __m512 scale[4];

  void expand(const Q4Chunk* chunks, int g) {
    constexpr std::int64_t kNear = 2 * 2, kFar = 2 * 10;  // chunks
    const __m512i low_nibble = _mm512_set1_epi8(15);
    for (int v = 0; v < 4; ++v) {
      const Q4Chunk& chunk = chunks[v / 2];
      const int half = v % 2;
      for (int j = 0; j < 4; ++j) {
        _mm_prefetch((&chunk)[kNear].nibbles[half][g][j], _MM_HINT_T0);
        _mm_prefetch((&chunk)[kFar].nibbles[half][g][j], _MM_HINT_T1);
        const __m512i pairs = _mm512_loadu_si512(chunk.nibbles[half][g][j]);
        _mm512_store_si512(nibbles[v][j], _mm512_and_si512(pairs, low_nibble));
        _mm512_store_si512(nibbles[v][4 + j], _mm512_and_si512(_mm512_srli_epi16(pairs, 4), low_nibble));
      }
      _mm_prefetch((&chunk)[kNear].scale[half], _MM_HINT_T0);
      _mm_prefetch((&chunk)[kFar].scale[half], _MM_HINT_T1);
      scale[v] = _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(chunk.scale[half][g])));
    }
    finish_stores(nibbles);
  }
};

/// Multiplies tiles of `tile_rows` rows from row `first` on: a group's sums leave the tiles as integers, and are
/// accumulated as in the vector kernels.
void multiply_q4(const GemmArgs& a, std::int64_t first, std::int64_t rows, std::int64_t tile_rows) {
  // 0 to 3: sums [tile_rows, 16] of upper and of lower bytes, of two times 16 outputs in turn. 4, 5: upper and lower
  // bytes [tile_rows, 32 bytes]. 6, 7: weights [8, 16 outputs x 4 bytes]
  TileConfig config;
  for (int t = 0; t < 6; ++t) config.rows[t] = static_cast<std::uint8_t>(tile_rows);
  for (int t = 4; t < 6; ++t) config.row_bytes[t] = 32;
  for (int t = 6; t < 8; ++t) config.rows[t] = 8;
  configure_tiles(config);
  const auto* const chunks = reinterpret_cast<const Q4Chunk*>(a.weights);
  const auto* const inputs = reinterpret_cast<const Q4Input*>(a.x) + first * 2 * a.steps;
  const std::int64_t row_bytes = 2 * a.steps * static_cast<std::int64_t>(sizeof(Q4Input));
  __m512 totals[kQ4TileWalkRows][4];  // fit the L1 cache beside a group's weights
  for (std::int64_t r = 0; r < rows; ++r)
    for (__m512& total : totals[r]) total = _mm512_setzero_ps();
  Q4Tiles tiles;
  alignas(64) std::int32_t sums[4][2][kTileRows][16];
  for (std::int64_t g = 0; g < 2 * a.steps; ++g) {
    tiles.expand(chunks + g / 2 * 2, static_cast<int>(g % 2));
    for (std::int64_t row = 0; row < rows; row += tile_rows) {
      const Q4Input* const x = inputs + row * 2 * a.steps + g;
      _tile_loadd(4, x->high, row_bytes);
      _tile_loadd(5, x->low, row_bytes);
      for (int v = 0; v < 4; v += 2) {
        zero_sums();
        _tile_loadd(6, tiles.nibbles[v], 64);
        _tile_dpbsud(0, 4, 6);
        _tile_dpbsud(1, 5, 6);
        _tile_loadd(7, tiles.nibbles[v + 1], 64);
        _tile_dpbsud(2, 4, 7);
        _tile_dpbsud(3, 5, 7);
        _tile_stored(0, sums[v][0], 64);
        _tile_stored(1, sums[v][1], 64);
        _tile_stored(2, sums[v + 1][0], 64);
        _tile_stored(3, sums[v + 1][1], 64);
      }
      finish_stores(sums);
      for (std::int64_t r = 0; r < tile_rows; ++r) {
        const Q4Input& input = x[r * 2 * a.steps];
        const __m512i offset = _mm512_set1_epi32(input.offset);
        const __m512 scale = _mm512_set1_ps(input.scale);
        for (int v = 0; v < 4; ++v) {
          const __m512i high = _mm512_slli_epi32(_mm512_load_si512(sums[v][0][r]), 8),
                        sum = _mm512_add_epi32(_mm512_add_epi32(high, _mm512_load_si512(sums[v][1][r])), offset);
          __m512& total = totals[row + r][v];
          total = _mm512_fmadd_ps(_mm512_mul_ps(tiles.scale[v], scale), _mm512_cvtepi32_ps(sum), total);
        }
      }
    }
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    alignas(64) float total[kBlockOutputs];
    std::memcpy(total, totals[r], sizeof total);
    float* const y = a.y + (first + r) * a.y_stride;
    for (std::int64_t o = 0; o < a.outputs; ++o) y[o] = total[o] * a.column_scale[o];
  }
}

template <typename Weight>
void multiply(const GemmArgs& a) {
  (a.rows <= kTileRows ? multiply_few<Weight> : multiply_many<Weight>)(a);
  _tile_release();
}

}  // namespace

void gemm_int4_amx(const GemmArgs& a) { multiply<Int4Chunk>(a); }
void gemm_q4_amx(const GemmArgs& a) {
  const std::int64_t whole = a.rows / kTileRows * kTileRows;
  for (std::int64_t r = 0; r < whole; r += kQ4TileWalkRows)
    multiply_q4(a, r, whole - r < kQ4TileWalkRows ? whole - r : kQ4TileWalkRows, kTileRows);
  if (whole < a.rows) multiply_q4(a, whole, a.rows - whole, a.rows - whole);
  _tile_release();
}
void gemm_int8_amx(const GemmArgs& a) { multiply<std::int8_t>(a); }
void gemm_bf16_amx(const GemmArgs& a) { multiply<Bf16>(a); }

}  // namespace outrider
