// Our own kernels over blocks of 64 outputs (GemmArgs): int4 and q4 on every instruction set, int8 and bfloat16 with
// vectors or tiles. int8 and bfloat16 have oneDNN's packing for tiles (ADR 5).
#include <algorithm>
#include <cstring>
#include <limits>

#include <fmt/format.h>

#include "common/compute/kernels/isa.h"
#include "common/compute/kernels/kernel_table.h"
#include "common/compute/kernels/packed_matrix.h"
#include "common/compute/kernels/team.h"
#include "common/compute/tensor/tensor.h"

namespace outrider {
namespace {

/// Kernels of a type: vectors up to a number of rows, tiles for more.
struct Kernels {
  std::int64_t vector_rows;
  GemmKernel* vectors;
  GemmKernel* tiles;
};

Kernels kernels_for(WeightType type) {
  constexpr std::int64_t kAll = std::numeric_limits<std::int64_t>::max();
  const KernelTable& table = kernels();
  const bool tiles = table.gemm_bf16_tiles != nullptr;
  switch (type) {
    // For few rows vectors are faster than tiles (docs/lab/int4.md).
    case WeightType::kInt4: return {tiles ? 3 : kAll, table.gemm_int4, table.gemm_int4_tiles};
    // Tiles take about as long for one row as for eight: docs/lab/kernels.md, the last section.
    case WeightType::kQ4: return {tiles ? 8 : kAll, table.gemm_q4, table.gemm_q4_tiles};
    case WeightType::kInt8: return {tiles ? 0 : kAll, table.gemm_int8, table.gemm_int8_tiles};
    case WeightType::kBf16: return {tiles ? 0 : kAll, table.gemm_bf16, table.gemm_bf16_tiles};
    default: return {};
  }
}

class BlockMatrix final : public PackedMatrix {
 public:
  BlockMatrix(PackedWeights weights, const Kernels& kernels)
      : PackedMatrix(std::move(weights), fmt::format("own {}", to_string(active_isa()))), kernels_(kernels) {}

  void multiply(const float* x, std::int64_t rows, float* y, std::int64_t y_stride) const override {
    const PackedWeights& w = weights();
    const bool tiles = rows > kernels_.vector_rows, q4 = w.type == WeightType::kQ4;
    const Inputs inputs = q4 ? round_inputs(x, rows) : store_inputs(x, rows, tiles);
    const std::int64_t steps = steps_of(w), blocks = divide_up(w.out, kBlockOutputs);
    const bool expands = tiles && w.type == WeightType::kInt4;
    const std::int64_t block_bytes = std::ssize(w.bytes) / blocks;
    share_product(blocks, block_bytes, rows, q4 ? kQ4TileWalkRows : tiles ? 2 * kTileRows : kWalkRows,
                  [&](std::int64_t block, std::int64_t first, std::int64_t count) {
                    auto* const expanded =
                        scratch<std::byte>(Scratch::kOutput, expands ? steps * kStepBytes * kBlockOutputs : 0);
                    const std::int64_t output = block * kBlockOutputs;
                    const auto* const sums = inputs.sums == nullptr ? nullptr : inputs.sums + first * steps * 2;
                    (tiles ? kernels_.tiles
                           : kernels_.vectors)({.weights = w.bytes.data() + block * block_bytes,
                                                .steps = steps,
                                                .x = inputs.x + first * inputs.row_bytes,
                                                .sums = sums,
                                                .expanded = expanded,
                                                .rows = count,
                                                .outputs = std::min(kBlockOutputs, w.out - output),
                                                .row_scale = q4 ? nullptr : inputs.row_scale + first,
                                                .column_scale = w.scales.empty() ? nullptr : w.scales.data() + output,
                                                .y = y + first * y_stride + output,
                                                .y_stride = y_stride});
                  });
  }

  static std::int64_t input_bytes(WeightType type) { return type == WeightType::kBf16 ? 2 : 1; }
  static std::int64_t steps_of(const PackedWeights& w) { return divide_up(w.in * input_bytes(w.type), kStepBytes); }

 private:
  /// Rows as the kernels read them (GemmArgs), in the calling thread's scratch.
  struct Inputs {
    const std::byte* x;
    std::int64_t row_bytes;
    const std::int16_t* sums;
    const float* row_scale;
  };

  Inputs round_inputs(const float* x, std::int64_t rows) const {
    const std::int64_t in = weights().in, groups = 2 * steps_of(weights());
    auto* const input = scratch<Q4Input>(Scratch::kInput, rows * groups);
    team_run(rows, kInputsPerPiece / in + 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r)
        round_q4_inputs({x + r * in, static_cast<std::size_t>(in)}, groups, input + r * groups);
    });
    return {reinterpret_cast<const std::byte*>(input), groups * static_cast<std::int64_t>(sizeof(Q4Input)), nullptr,
            nullptr};
  }

  Inputs store_inputs(const float* x, std::int64_t rows, bool tiles) const {
    const PackedWeights& w = weights();
    const bool floats = !tiles && w.type == WeightType::kBf16;
    const std::int64_t steps = steps_of(w), row_bytes = steps * kStepBytes;
    const std::int64_t input_rows = tiles ? divide_up(rows, 2 * kTileRows) * 2 * kTileRows : floats ? 2 * rows : rows;
    auto* const input = scratch<std::byte>(Scratch::kInput, input_rows * row_bytes);
    auto* const sums = scratch<std::int16_t>(Scratch::kSums, tiles || floats ? 0 : rows * steps * 2);
    auto* const row_scale = scratch<float>(Scratch::kRowScale, rows);
    team_run(rows, kInputsPerPiece / w.in + 1, [&](std::int64_t begin, std::int64_t end) {
      auto* const row = scratch<std::byte>(Scratch::kOutput, row_bytes);
      for (std::int64_t r = begin; r < end; ++r) {
        std::byte* const to = tiles || floats ? row : input + r * row_bytes;
        row_scale[r] = store_row({x + r * w.in, static_cast<std::size_t>(w.in)}, to, row_bytes);
        if (tiles) {
          std::byte* const tile = input + r / kTileRows * kTileRows * row_bytes + r % kTileRows * kStepBytes;
          for (std::int64_t s = 0; s < steps; ++s)
            std::memcpy(tile + s * kTileRows * kStepBytes, row + s * kStepBytes, kStepBytes);
        } else if (floats) {
          widen(reinterpret_cast<const Bf16*>(to), steps * kStepBytes / 2,
                reinterpret_cast<float*>(input) + r * steps * kStepBytes / 2);
        } else {
          sum_groups(reinterpret_cast<const std::int8_t*>(to), 2 * steps, sums + r * steps * 2);
        }
      }
    });
    return {input, floats ? 2 * row_bytes : row_bytes, tiles || floats ? nullptr : sums, row_scale};
  }

  /// Stores a row as the kernels read it, padded with zeros to `bytes`. @return its scale
  float store_row(std::span<const float> x, std::byte* to, std::int64_t bytes) const {
    const WeightType type = weights().type == WeightType::kInt4 ? WeightType::kInt8 : weights().type;
    const std::int64_t used = std::ssize(x) * input_bytes(type);
    std::fill(to + used, to + bytes, std::byte{0});
    return format_of(type).store_row(x, 0, to);
  }

  static void widen(const Bf16* x, std::int64_t count, float* y) {
    for (std::int64_t i = 0; i < count; ++i) y[i] = to_float(x[i]);
  }

  static void sum_groups(const std::int8_t* x, std::int64_t groups, std::int16_t* sums) {
    for (std::int64_t g = 0; g < groups; ++g, x += 32) {
      std::int32_t sum = 0;
      for (int i = 0; i < 32; ++i) sum += x[i];
      sums[g] = static_cast<std::int16_t>(sum);
    }
  }

  Kernels kernels_;
};

/// Converts rows [out, in] to blocks.
PackedWeights pack(const PackedWeights& rows, const char* layout) {
  const std::int64_t block_bytes = BlockMatrix::steps_of(rows) * kStepBytes * kBlockOutputs,
                     blocks = divide_up(rows.out, kBlockOutputs), row_bytes = std::ssize(rows.bytes) / rows.out;
  const auto memory = std::make_shared<AlignedArray<std::byte>>(static_cast<std::size_t>(blocks * block_bytes));
  team_for(blocks, 1, [&](std::int64_t b) {
    for (std::int64_t o = 0; o < std::min(kBlockOutputs, rows.out - b * kBlockOutputs); ++o) {
      const std::byte* from = rows.bytes.data() + (b * kBlockOutputs + o) * row_bytes;
      std::byte* to = memory->data() + b * block_bytes + o * 4;
      for (std::int64_t i = 0; i < row_bytes; i += 4, to += 4 * kBlockOutputs)
        std::memcpy(to, from + i, static_cast<std::size_t>(std::min<std::int64_t>(4, row_bytes - i)));
    }
  });
  return {rows.type, rows.in, rows.out, layout, memory->span(), memory, rows.scales};
}

}  // namespace

std::shared_ptr<const PackedMatrix> make_block(const PackedWeights& weights) {
  const Kernels kernels = kernels_for(weights.type);
  if (kernels.vectors == nullptr && kernels.tiles == nullptr) return nullptr;
  if (!format_of(weights.type).is_elements()) return std::make_shared<BlockMatrix>(weights, kernels);
  const char* const layout = weights.type == WeightType::kInt8 ? "BA16a64b4a" : "BA16a64b2a";
  return std::make_shared<BlockMatrix>(weights.layout == layout ? weights : pack(as_rows(weights), layout), kernels);
}

}  // namespace outrider
