// int8 and bfloat16 weights with AMX tiles. They stay as oneDNN packed them. Ours reads them faster, and takes more
// than 16 rows at once, for which oneDNN would read them again (docs/lab/amx.md).
#include <immintrin.h>

#include <cstring>
#include <type_traits>

#include "common/kernels/kernel_table.h"

namespace outrider {
namespace {

#include "common/kernels/amx_tiles.inc"

static_assert(kTile == kTileRows && kTileOutputs == 4 * kTile);
constexpr std::int64_t kInputBytes = kTile * kTileInputBytes;  ///< of a tile of inputs
constexpr std::int64_t kGroupBytes = 4 * kTileOutputs;         ///< four bytes of inputs of every output
constexpr std::int64_t kStepBytes = kTileInputBytes / 4 * kGroupBytes;
constexpr std::int64_t kFarSteps = 8;

/// Sums of int8 products are exact; those of bfloat16 grow step by step, in the order that the instruction has within
/// one.
template <typename Weight>
using Sum = std::conditional_t<std::is_same_v<Weight, Bf16>, float, std::int32_t>;

// The tiles' numbers are part of the instruction.
#define MULTIPLY(sum, inputs, weights)        \
  if constexpr (std::is_same_v<Weight, Bf16>) \
    _tile_dpbf16ps(sum, inputs, weights);     \
  else                                        \
    _tile_dpbssd(sum, inputs, weights)

void write(const TileArgs& a, std::int64_t row, const std::int32_t (&sums)[kTileOutputs]) {
  kAvx512Kernels.dequantize(sums, a.row_scale[row], a.column_scale, kTileOutputs, a.y + row * a.y_stride);
}
void write(const TileArgs& a, std::int64_t row, const float (&sums)[kTileOutputs]) {
  std::memcpy(a.y + row * a.y_stride, sums, sizeof sums);
}

/// A quarter of the next step into the L1 cache and of a later one into the L2, which has more reads under way. Tile
/// loads alone would wait for every line in turn.
inline void prefetch_weights(const std::byte* quarter) {
  for (std::int64_t byte = 0; byte < kStepBytes / 4; byte += 64) {
    _mm_prefetch(quarter + kStepBytes + byte, _MM_HINT_T0);
    _mm_prefetch(quarter + kFarSteps * kStepBytes + byte, _MM_HINT_T1);
  }
}

/// One tile of rows: each step of the weights is read once, in the order of the memory.
template <typename Weight>
void multiply_few(const TileArgs& a) {
  TileConfig config;
  for (int t = 0; t < 5; ++t) config.rows[t] = static_cast<std::uint8_t>(a.rows);
  configure_tiles(
      config);  // 0 to 3: sums [rows, 16]. 4: inputs [rows, 64 bytes]. 5 to 7: weights [16, 16 outputs x 4 bytes]
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  const std::byte *x = a.x, *weights = a.weights;
  for (std::int64_t step = 0; step < a.steps; ++step, x += kInputBytes, weights += kStepBytes) {
    _tile_loadd(4, x, kTileInputBytes);
    _tile_loadd(5, weights, kGroupBytes);
    prefetch_weights(weights);
    MULTIPLY(0, 4, 5);
    _tile_loadd(6, weights + 4 * kTile, kGroupBytes);
    prefetch_weights(weights + kStepBytes / 4);
    MULTIPLY(1, 4, 6);
    _tile_loadd(7, weights + 8 * kTile, kGroupBytes);
    prefetch_weights(weights + kStepBytes / 2);
    MULTIPLY(2, 4, 7);
    _tile_loadd(5, weights + 12 * kTile, kGroupBytes);
    prefetch_weights(weights + kStepBytes * 3 / 4);
    MULTIPLY(3, 4, 5);
  }
  alignas(64) Sum<Weight> sums[kTile][kTileOutputs];
  _tile_stored(0, &sums[0][0], sizeof sums[0]);
  _tile_stored(1, &sums[0][kTile], sizeof sums[0]);
  _tile_stored(2, &sums[0][2 * kTile], sizeof sums[0]);
  _tile_stored(3, &sums[0][3 * kTile], sizeof sums[0]);
  finish_stores(sums);
  for (std::int64_t r = 0; r < a.rows; ++r) write(a, r, sums[r]);
}

/// Two by two tiles: what is loaded is used twice.
template <typename Weight>
void multiply_many(const TileArgs& a) {
  configure_tiles();  // 0 to 3: sums [16, 16]. 4, 5: inputs [16 rows, 64 bytes]. 6, 7: weights [16, 16 outputs x 4
                      // bytes]
  for (std::int64_t r = 0; r < a.rows; r += 2 * kTile) {
    alignas(64) Sum<Weight> sums[2 * kTile][kTileOutputs];
    for (std::int64_t o = 0; o < kTileOutputs; o += 2 * kTile) {
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
      const std::byte *upper = a.x + r * a.steps * kTileInputBytes, *lower = upper + a.steps * kInputBytes;
      const std::byte *left = a.weights + 4 * o, *right = left + 4 * kTile;
      for (std::int64_t step = 0; step < a.steps; ++step) {
        _tile_loadd(4, upper, kTileInputBytes);
        _tile_loadd(6, left, kGroupBytes);
        MULTIPLY(0, 4, 6);
        prefetch_tile(upper += kInputBytes, kTileInputBytes);
        prefetch_tile(left += kStepBytes, kGroupBytes);
        _tile_loadd(7, right, kGroupBytes);
        MULTIPLY(1, 4, 7);
        prefetch_tile(lower + kInputBytes, kTileInputBytes);
        prefetch_tile(right += kStepBytes, kGroupBytes);
        _tile_loadd(5, lower, kTileInputBytes);
        lower += kInputBytes;
        MULTIPLY(2, 5, 6);
        MULTIPLY(3, 5, 7);
      }
      _tile_stored(0, &sums[0][o], sizeof sums[0]);
      _tile_stored(1, &sums[0][o + kTile], sizeof sums[0]);
      _tile_stored(2, &sums[kTile][o], sizeof sums[0]);
      _tile_stored(3, &sums[kTile][o + kTile], sizeof sums[0]);
    }
    finish_stores(sums);
    for (std::int64_t i = 0; i < 2 * kTile && r + i < a.rows; ++i) write(a, r + i, sums[i]);
  }
}

#undef MULTIPLY

template <typename Weight>
void multiply(const TileArgs& a) {
  (a.rows <= kTile ? multiply_few<Weight> : multiply_many<Weight>)(a);
  _tile_release();
}

}  // namespace

void gemm_int8_amx(const TileArgs& a) { multiply<std::int8_t>(a); }
void gemm_bf16_amx(const TileArgs& a) { multiply<Bf16>(a); }

}  // namespace outrider
