// q4 on every instruction set: with vectors, or with tiles if there are enough rows.
#include <algorithm>

#include <fmt/format.h>

#include "common/compute/kernels/isa.h"
#include "common/compute/kernels/kernel_table.h"
#include "common/compute/kernels/packed_matrix.h"
#include "common/compute/kernels/team.h"

namespace outrider {
namespace {

class Q4Matrix final : public PackedMatrix {
 public:
  explicit Q4Matrix(const PackedWeights& weights)
      : PackedMatrix(weights, fmt::format("own {}", to_string(active_isa()))) {}

  void multiply(const float* x, std::int64_t rows, float* y, std::int64_t y_stride) const override {
    const PackedWeights& w = weights();
    const WeightFormat& format = format_of(w.type);
    const std::int64_t steps = divide_up(w.in, format.unit_inputs), groups = 2 * steps,
                       blocks = divide_up(w.out, kBlockOutputs), block_bytes = std::ssize(w.bytes) / blocks;
    auto* const input = scratch<Q4Input>(Scratch::kInput, rows * groups);
    team_run(rows, kInputsPerPiece / w.in + 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r)
        round_q4_inputs({x + r * w.in, static_cast<std::size_t>(w.in)}, groups, input + r * groups);
    });
    // Tiles take about as long for one row as for eight: docs/lab/kernels.md, the last section.
    constexpr std::int64_t kVectorRows = 8;
    const bool tiles = kernels().gemm_q4_tiles != nullptr && rows > kVectorRows;
    share_product(blocks, block_bytes, rows, kQ4TileWalkRows,
                  [&](std::int64_t block, std::int64_t first, std::int64_t count) {
                    const std::int64_t output = block * kBlockOutputs;
                    (tiles ? kernels().gemm_q4_tiles
                           : kernels().gemm_q4)({.weights = w.bytes.data() + block * block_bytes,
                                                 .steps = steps,
                                                 .x = reinterpret_cast<const std::byte*>(input + first * groups),
                                                 .sums = nullptr,
                                                 .expanded = nullptr,
                                                 .rows = count,
                                                 .outputs = std::min(kBlockOutputs, w.out - output),
                                                 .row_scale = nullptr,
                                                 .column_scale = w.scales.data() + output,
                                                 .y = y + first * y_stride + output,
                                                 .y_stride = y_stride});
                  });
  }
};

}  // namespace

std::shared_ptr<const PackedMatrix> make_q4(const PackedWeights& weights) {
  return weights.type == WeightType::kQ4 ? std::make_shared<Q4Matrix>(weights) : nullptr;
}

}  // namespace outrider
