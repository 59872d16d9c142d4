// int8 and bfloat16 weights with AMX. oneDNN's kernel reads them slower, and again for every 16 or 64 rows
// (docs/lab/amx.md).
#include <immintrin.h>

#include <cstring>
#include <type_traits>

#include "common/kernels/kernel_table.h"

namespace outrider {
namespace {

#include "common/kernels/amx_common.inc"

static_assert(kAmxBlockOutputs == 4 * kAmxRows);
constexpr std::int64_t kInputBytes = kAmxRows * kAmxStepBytes;  ///< of a tile of inputs
constexpr std::int64_t kGroupBytes = 4 * kAmxBlockOutputs;      ///< four bytes of inputs of every output
constexpr std::int64_t kStepBytes = kAmxStepBytes / 4 * kGroupBytes;
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

void write(const AmxArgs& a, std::int64_t row, const std::int32_t (&sums)[kAmxBlockOutputs]) {
  kAvx512Kernels.dequantize(sums, a.row_scale[row], a.column_scale, kAmxBlockOutputs, a.y + row * a.y_stride);
}
void write(const AmxArgs& a, std::int64_t row, const float (&sums)[kAmxBlockOutputs]) {
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
void multiply_few(const AmxArgs& a) {
  TileConfig config;
  for (int t = 0; t < 5; ++t) config.rows[t] = static_cast<std::uint8_t>(a.rows);
  // 0 to 3: sums [rows, 16]. 4: inputs [rows, 64 bytes]. 5 to 7: weights [16, 16 outputs x 4 bytes]
  configure_tiles(config);
  zero_sums();
  const std::byte *x = a.x, *weights = a.weights;
  for (std::int64_t step = 0; step < a.steps; ++step, x += kInputBytes, weights += kStepBytes) {
    _tile_loadd(4, x, kAmxStepBytes);
    _tile_loadd(5, weights, kGroupBytes);
    prefetch_weights(weights);
    MULTIPLY(0, 4, 5);
    _tile_loadd(6, weights + 4 * kAmxRows, kGroupBytes);
    prefetch_weights(weights + kStepBytes / 4);
    MULTIPLY(1, 4, 6);
    _tile_loadd(7, weights + 8 * kAmxRows, kGroupBytes);
    prefetch_weights(weights + kStepBytes / 2);
    MULTIPLY(2, 4, 7);
    _tile_loadd(5, weights + 12 * kAmxRows, kGroupBytes);
    prefetch_weights(weights + kStepBytes * 3 / 4);
    MULTIPLY(3, 4, 5);
  }
  alignas(64) Sum<Weight> sums[kAmxRows][kAmxBlockOutputs];
  _tile_stored(0, &sums[0][0], sizeof sums[0]);
  _tile_stored(1, &sums[0][kAmxRows], sizeof sums[0]);
  _tile_stored(2, &sums[0][2 * kAmxRows], sizeof sums[0]);
  _tile_stored(3, &sums[0][3 * kAmxRows], sizeof sums[0]);
  finish_stores(sums);
  for (std::int64_t r = 0; r < a.rows; ++r) write(a, r, sums[r]);
}

/// Two by two tiles: what is loaded is used twice.
template <typename Weight>
void multiply_many(const AmxArgs& a) {
  // 0 to 3: sums [16, 16]. 4, 5: inputs [16 rows, 64 bytes]. 6, 7: weights [16, 16 outputs x 4 bytes]
  configure_tiles();
  for (std::int64_t r = 0; r < a.rows; r += 2 * kAmxRows) {
    alignas(64) Sum<Weight> sums[2 * kAmxRows][kAmxBlockOutputs];
    for (std::int64_t o = 0; o < kAmxBlockOutputs; o += 2 * kAmxRows) {
      zero_sums();
      const std::byte *upper = a.x + r * a.steps * kAmxStepBytes, *lower = upper + a.steps * kInputBytes;
      const std::byte *left = a.weights + 4 * o, *right = left + 4 * kAmxRows;
      for (std::int64_t step = 0; step < a.steps; ++step) {
        _tile_loadd(4, upper, kAmxStepBytes);
        _tile_loadd(6, left, kGroupBytes);
        MULTIPLY(0, 4, 6);
        prefetch_tile(upper += kInputBytes, kAmxStepBytes);
        prefetch_tile(left += kStepBytes, kGroupBytes);
        _tile_loadd(7, right, kGroupBytes);
        MULTIPLY(1, 4, 7);
        prefetch_tile(lower + kInputBytes, kAmxStepBytes);
        prefetch_tile(right += kStepBytes, kGroupBytes);
        _tile_loadd(5, lower, kAmxStepBytes);
        lower += kInputBytes;
        MULTIPLY(2, 5, 6);
        MULTIPLY(3, 5, 7);
      }
      _tile_stored(0, &sums[0][o], sizeof sums[0]);
      _tile_stored(1, &sums[0][o + kAmxRows], sizeof sums[0]);
      _tile_stored(2, &sums[kAmxRows][o], sizeof sums[0]);
      _tile_stored(3, &sums[kAmxRows][o + kAmxRows], sizeof sums[0]);
    }
    finish_stores(sums);
    for (std::int64_t i = 0; i < 2 * kAmxRows && r + i < a.rows; ++i) write(a, r + i, sums[i]);
  }
}

#undef MULTIPLY

template <typename Weight>
void multiply(const AmxArgs& a) {
  (a.rows <= kAmxRows ? multiply_few<Weight> : multiply_many<Weight>)(a);
  _tile_release();
}

}  // namespace

void gemm_int8_amx(const AmxArgs& a) { multiply<std::int8_t>(a); }
void gemm_bf16_amx(const AmxArgs& a) { multiply<Bf16>(a); }

}  // namespace outrider
