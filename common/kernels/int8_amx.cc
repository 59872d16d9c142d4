// int8 weights with AMX int8 tiles, for more rows than oneDNN takes at the price of one: it would read the weights once for
// every 16 or 64 rows (docs/performance.md). They stay as oneDNN packed them; sums are exact, so both give the same bits.
#include <immintrin.h>

#include "common/kernels/kernel_table.h"

namespace outrider {
namespace {

#include "common/kernels/amx_tiles.inc"

constexpr std::int64_t kTile = 16;  ///< rows or outputs of a tile of sums
constexpr std::int64_t kStepBytes = kInt8Inputs * kInt8Outputs;
constexpr std::int64_t kGroupBytes = 4 * kInt8Outputs;  ///< four inputs of every output

}  // namespace

void gemm_int8_amx(const Int8Args& a) {
  configure_tiles();  // 0 to 3: int32 sums [16, 16]. 4, 5: inputs [16 rows, 64]. 6, 7: weights [16, 16 outputs x 4]
  const std::int64_t row_bytes = a.steps * kInt8Inputs;
  for (std::int64_t r = 0; r < a.rows; r += kInt8Rows) {
    alignas(64) std::int32_t sums[kInt8Rows][kInt8Outputs];
    for (std::int64_t o = 0; o < kInt8Outputs; o += 2 * kTile) {
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
      const std::int8_t* x = a.x + r * row_bytes;
      const std::int8_t* weights = a.weights + 4 * o;
      for (std::int64_t step = 0; step < a.steps; ++step, x += kInt8Inputs, weights += kStepBytes) {
        _tile_loadd(4, x, row_bytes);
        _tile_loadd(6, weights, kGroupBytes);
        _tile_dpbssd(0, 4, 6);
        _tile_loadd(7, weights + 4 * kTile, kGroupBytes);
        _tile_dpbssd(1, 4, 7);
        _tile_loadd(5, x + kTile * row_bytes, row_bytes);
        _tile_dpbssd(2, 5, 6);
        _tile_dpbssd(3, 5, 7);
      }
      _tile_stored(0, &sums[0][o], sizeof sums[0]);
      _tile_stored(1, &sums[0][o + kTile], sizeof sums[0]);
      _tile_stored(2, &sums[kTile][o], sizeof sums[0]);
      _tile_stored(3, &sums[kTile][o + kTile], sizeof sums[0]);
    }
    finish_stores(sums);
    for (std::int64_t i = 0; i < kInt8Rows && r + i < a.rows; ++i) {
      kAvx512Kernels.dequantize(sums[i], a.row_scale[r + i], a.column_scale, kInt8Outputs, a.y + (r + i) * a.y_stride);
    }
  }
  _tile_release();
}

}  // namespace outrider
