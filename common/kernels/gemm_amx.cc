// int8, bfloat16 and int4 weights with AMX. oneDNN's kernel reads the first two slower, and again for every 16 or 64
// rows (docs/lab/amx.md). Those of int4 become int8 on the way, in the same places.
#include <immintrin.h>

#include <cstring>
#include <type_traits>

#include "common/kernels/kernel_table.h"

namespace outrider {
namespace {

#include "common/kernels/amx_common.inc"

static_assert(kBlockOutputs == 4 * kTileRows);
constexpr std::int64_t kInputBytes = kTileRows * kStepBytes;  ///< of a tile of inputs
constexpr std::int64_t kGroupBytes = 4 * kBlockOutputs;       ///< four bytes of inputs of every output
constexpr std::int64_t kStep = kStepBytes / 4 * kGroupBytes;  ///< bytes of a block's weights at a step
constexpr std::int64_t kFarSteps = 8;

template <typename Weight>
constexpr bool kExpands = std::is_same_v<Weight, Int4Chunk>;

/// Sums of integer products are exact; those of bfloat16 grow step by step, in the order that the instruction has
/// within one.
template <typename Weight>
using Sum = std::conditional_t<std::is_same_v<Weight, Bf16>, float, std::int32_t>;

// The tiles' numbers are part of the instruction.
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

/// A quarter of the next step into the L1 cache and of a later one into the L2, which has more reads under way. Tile
/// loads alone would wait for every line in turn.
inline void prefetch_weights(const std::byte* quarter) {
  for (std::int64_t byte = 0; byte < kStep / 4; byte += 64) {
    _mm_prefetch(quarter + kStep + byte, _MM_HINT_T0);
    _mm_prefetch(quarter + kFarSteps * kStep + byte, _MM_HINT_T1);
  }
}

/// 16 outputs of a chunk as int8, into a tile's place in a step. A 16-bit product of two nibbles and their multiplier
/// does both: nothing carries, as 15 * 15 < 256. Meanwhile fetches the same of later steps.
inline void expand_tile(const Int4Chunk& chunk, int half, std::byte* to) {
  constexpr std::int64_t kChunksAStep = 2, kNear = 3 * kChunksAStep, kFar = 12 * kChunksAStep;
  const __m512i low_nibble = _mm512_set1_epi8(15);
  __m512i multiplier[2], zero[2];
#pragma GCC unroll 2
  for (int g = 0; g < 2; ++g) {
    const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(chunk.group[half][g])));
    const __m512i k = _mm512_and_si512(bytes, _mm512_set1_epi32(15));
    const __m512i place = _mm512_add_epi32(_mm512_srli_epi32(bytes, 4), _mm512_set1_epi32(23));
    const __m512i z = _mm512_srli_epi32(_mm512_add_epi32(_mm512_mullo_epi16(k, place), _mm512_set1_epi32(3)), 2);
    const __m512i two = _mm512_or_si512(z, _mm512_slli_epi32(z, 8));
    multiplier[g] = _mm512_or_si512(k, _mm512_slli_epi32(k, 16));
    zero[g] = _mm512_or_si512(two, _mm512_slli_epi32(two, 16));
  }
  _mm_prefetch(&(&chunk)[kNear].group[half], _MM_HINT_T0);
  _mm_prefetch(&(&chunk)[kFar].group[half], _MM_HINT_T1);
#pragma GCC unroll 8
  for (int line = 0; line < 8; ++line) {
    const int g = line / 4, j = line % 4;
    _mm_prefetch((&chunk)[kNear].nibbles[half][g][j], _MM_HINT_T0);
    _mm_prefetch((&chunk)[kFar].nibbles[half][g][j], _MM_HINT_T1);
    const __m512i pair = _mm512_loadu_si512(chunk.nibbles[half][g][j]), low = _mm512_and_si512(pair, low_nibble),
                  high = _mm512_and_si512(_mm512_srli_epi16(pair, 4), low_nibble);
    std::byte* const row = to + (8 * g + j) * kGroupBytes;
    _mm512_store_si512(row, _mm512_sub_epi8(_mm512_mullo_epi16(low, multiplier[g]), zero[g]));
    _mm512_store_si512(row + 4 * kGroupBytes, _mm512_sub_epi8(_mm512_mullo_epi16(high, multiplier[g]), zero[g]));
    finish_stores(to);  // or the compiler would fetch all lines in one go, and everything else would wait for them
  }
}

/// Both tiles of a chunk. What the tiles read stays before and after this.
inline void expand(const Int4Chunk& chunk, std::byte* to) {
  finish_stores(to);
  expand_tile(chunk, 0, to);
  expand_tile(chunk, 1, to + 4 * kTileRows);
  finish_stores(to);
}

/// One tile of rows: each step of the weights is read once, in the order of the memory.
template <typename Weight>
void multiply_few(const GemmArgs& a) {
  TileConfig config;
  for (int t = 0; t < 5; ++t) config.rows[t] = static_cast<std::uint8_t>(a.rows);
  // 0 to 3: sums [rows, 16]. 4: inputs [rows, 64 bytes]. 5 to 7: weights [16, 16 outputs x 4 bytes]
  configure_tiles(config);
  zero_sums();
  const auto* chunks = reinterpret_cast<const Int4Chunk*>(a.weights);
  alignas(64) std::byte expanded[2][kExpands<Weight> ? kStep : 1];
  const auto expand_step = [&](std::int64_t step) {
    expand(chunks[2 * step], expanded[step % 2]);
    expand(chunks[2 * step + 1], expanded[step % 2] + 8 * kTileRows);
  };
  if constexpr (kExpands<Weight>) expand_step(0);
  const std::byte *x = a.x, *weights = a.weights;
  for (std::int64_t step = 0; step < a.steps; ++step, x += kInputBytes, weights += kStep) {
    if constexpr (kExpands<Weight>) {
      // The next step's, so that its stores need not wait for this one's tiles.
      if (step + 1 < a.steps) expand_step(step + 1);
      weights = expanded[step % 2];
    }
    const auto meanwhile = [&](std::int64_t quarter) {
      if constexpr (!kExpands<Weight>) prefetch_weights(weights + quarter * kStep / 4);
    };
    _tile_loadd(4, x, kStepBytes);
    _tile_loadd(5, weights, kGroupBytes);
    meanwhile(0);
    MULTIPLY(0, 4, 5);
    _tile_loadd(6, weights + 4 * kTileRows, kGroupBytes);
    meanwhile(1);
    MULTIPLY(1, 4, 6);
    _tile_loadd(7, weights + 8 * kTileRows, kGroupBytes);
    meanwhile(2);
    MULTIPLY(2, 4, 7);
    _tile_loadd(5, weights + 12 * kTileRows, kGroupBytes);
    meanwhile(3);
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

/// Two by two tiles: what is loaded is used twice. int4 is expanded by the first rows, for all.
template <typename Weight>
void multiply_many(const GemmArgs& a) {
  // 0 to 3: sums [16, 16]. 4, 5: inputs [16 rows, 64 bytes]. 6, 7: weights [16, 16 outputs x 4 bytes]
  configure_tiles();
  const auto* chunks = reinterpret_cast<const Int4Chunk*>(a.weights);
  const std::byte* const weights = kExpands<Weight> ? a.expanded : a.weights;
  for (std::int64_t r = 0; r < a.rows; r += 2 * kTileRows) {
    const bool expands = kExpands<Weight> && r == 0;
    alignas(64) Sum<Weight> sums[2 * kTileRows][kBlockOutputs];
    for (std::int64_t o = 0; o < kBlockOutputs; o += 2 * kTileRows) {
      zero_sums();
      const auto expand_step = [&](std::int64_t step) {
        expand(chunks[2 * step + o / kInt4ChunkOutputs], a.expanded + step * kStep + 4 * o);
      };
      if (expands) expand_step(0);
      const std::byte *upper = a.x + r * a.steps * kStepBytes, *lower = upper + a.steps * kInputBytes;
      const std::byte *left = weights + 4 * o, *right = left + 4 * kTileRows;
      for (std::int64_t step = 0; step < a.steps; ++step) {
        if (expands && step + 1 < a.steps) expand_step(step + 1);
        _tile_loadd(4, upper, kStepBytes);
        _tile_loadd(6, left, kGroupBytes);
        MULTIPLY(0, 4, 6);
        prefetch_tile(upper += kInputBytes, kStepBytes);
        prefetch_tile(left += kStep, kGroupBytes);
        _tile_loadd(7, right, kGroupBytes);
        MULTIPLY(1, 4, 7);
        prefetch_tile(lower + kInputBytes, kStepBytes);
        prefetch_tile(right += kStep, kGroupBytes);
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

template <typename Weight>
void multiply(const GemmArgs& a) {
  (a.rows <= kTileRows ? multiply_few<Weight> : multiply_many<Weight>)(a);
  _tile_release();
}

}  // namespace

void gemm_int4_amx(const GemmArgs& a) { multiply<Int4Chunk>(a); }
void gemm_int8_amx(const GemmArgs& a) { multiply<std::int8_t>(a); }
void gemm_bf16_amx(const GemmArgs& a) { multiply<Bf16>(a); }

}  // namespace outrider
