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
    const ProductGroup all{this, rows};
    multiply_groups({&all, 1}, x, y, y_stride);
  }
  void multiply_groups(std::span<const ProductGroup> products, const float* x, float* y,
                       std::int64_t y_stride) const override {
    const auto is_alike = [&](const ProductGroup& product) {
      const auto* const block = dynamic_cast<const BlockMatrix*>(product.matrix);
      return block != nullptr && block->weights().type == weights().type;
    };
    if (!std::ranges::all_of(products, is_alike)) return PackedMatrix::multiply_groups(products, x, y, y_stride);
    const std::span<const Group> groups = place(products);
    const Inputs inputs = store_inputs(x, groups);
    const std::int64_t blocks = this->blocks();
    const auto multiply = [&](const Group& group, std::int64_t block, std::int64_t first, std::int64_t rows) {
      group.matrix->multiply_block(group, inputs, block, first, rows, y + group.first * y_stride, y_stride);
    };
    if (groups.size() == 1) {
      const Group& all = groups[0];
      const bool q4 = weights().type == WeightType::kQ4;
      const std::int64_t unit = q4 ? kQ4TileWalkRows : all.tiles ? 2 * kTileRows : kWalkRows;
      return share_product(blocks, block_bytes(), all.rows, unit,
                           [&](std::int64_t block, std::int64_t first, std::int64_t rows) {
                             multiply(all, block, first, rows);
                           });
    }
    const std::int64_t rows_each = (groups.back().first + groups.back().rows) / std::ssize(groups);
    team_for(std::ssize(groups) * blocks, product_grain(block_bytes(), rows_each), [&](std::int64_t piece) {
      const Group& group = groups[static_cast<std::size_t>(piece / blocks)];
      multiply(group, piece % blocks, 0, group.rows);
    });
  }

  static std::int64_t input_bytes(WeightType type) { return type == WeightType::kBf16 ? 2 : 1; }
  static std::int64_t steps_of(const PackedWeights& w) { return divide_up(w.in * input_bytes(w.type), kStepBytes); }

 private:
  /// A group of rows, which tiles or vectors multiply.
  struct Group {
    const BlockMatrix* matrix;
    std::int64_t first, rows;  ///< in x and y
    std::int64_t place;        ///< of its first row in Inputs
    bool tiles;
  };
  /// Rows as the kernels read them (GemmArgs), in the calling thread's scratch.
  struct Inputs {
    std::byte* x;
    std::int64_t row_bytes;
    std::int16_t* sums;
    float* row_scale;
  };

  std::int64_t blocks() const { return divide_up(weights().out, kBlockOutputs); }
  std::int64_t block_bytes() const { return std::ssize(weights().bytes) / blocks(); }

  /// Computes a block of outputs of some of a group's rows.
  void multiply_block(const Group& group, const Inputs& inputs, std::int64_t block, std::int64_t first,
                      std::int64_t rows, float* y, std::int64_t y_stride) const {
    const PackedWeights& w = weights();
    const std::int64_t steps = steps_of(w);
    const std::int64_t output = block * kBlockOutputs, input = group.place + first;
    const bool expands = group.tiles && w.type == WeightType::kInt4;
    (group.tiles ? kernels_.tiles : kernels_.vectors)(
        {.weights = w.bytes.data() + block * block_bytes(),
         .steps = steps,
         .x = inputs.x + input * inputs.row_bytes,
         .sums = group.tiles || inputs.sums == nullptr ? nullptr : inputs.sums + input * steps * 2,
         .expanded = scratch<std::byte>(Scratch::kOutput, expands ? steps * kStepBytes * kBlockOutputs : 0),
         .rows = rows,
         .outputs = std::min(kBlockOutputs, w.out - output),
         .row_scale = inputs.row_scale == nullptr ? nullptr : inputs.row_scale + input,
         .column_scale = w.scales.empty() ? nullptr : w.scales.data() + output,
         .y = y + first * y_stride + output,
         .y_stride = y_stride});
  }

  /// Returns the groups with their places in Inputs, in the calling thread's scratch.
  std::span<const Group> place(std::span<const ProductGroup> groups) const {
    auto* const placed = scratch<Group>(Scratch::kGroups, std::ssize(groups));
    const bool q4 = weights().type == WeightType::kQ4;
    std::int64_t first = 0, place = 0;
    for (std::size_t i = 0; i < groups.size(); ++i) {
      const auto& [matrix, rows] = groups[i];
      const bool tiles = rows > kernels_.vector_rows;
      placed[i] = {static_cast<const BlockMatrix*>(matrix), first, rows, place, tiles};
      first += rows;
      place += tiles && !q4 ? divide_up(rows, 2 * kTileRows) * 2 * kTileRows : rows;
    }
    return {placed, groups.size()};
  }

  /// Calls store(group, row of the group) for all rows, shared among the team.
  template <typename Store>
  void for_rows(std::span<const Group> groups, const Store& store) const {
    const std::int64_t rows = groups.back().first + groups.back().rows;
    team_run(rows, kInputsPerPiece / weights().in + 1, [&](std::int64_t begin, std::int64_t end) {
      auto group = std::ranges::upper_bound(groups, begin, {}, &Group::first) - 1;
      for (std::int64_t r = begin; r < end; ++r) {
        if (r == group->first + group->rows) ++group;
        store(*group, r - group->first);
      }
    });
  }

  Inputs store_inputs(const float* x, std::span<const Group> groups) const {
    const PackedWeights& w = weights();
    const Group& last = groups.back();
    const auto row_of = [&](const Group& group, std::int64_t r) {
      return std::span(x + (group.first + r) * w.in, static_cast<std::size_t>(w.in));
    };
    const std::int64_t steps = steps_of(w);
    if (w.type == WeightType::kQ4) {
      const std::int64_t count = 2 * steps;
      auto* const input = scratch<Q4Input>(Scratch::kInput, (last.place + last.rows) * count);
      for_rows(groups, [&](const Group& group, std::int64_t r) {
        round_q4_inputs(row_of(group, r), count, input + (group.place + r) * count);
      });
      const auto row_bytes = count * static_cast<std::int64_t>(sizeof(Q4Input));
      return {.x = reinterpret_cast<std::byte*>(input), .row_bytes = row_bytes, .sums = nullptr, .row_scale = nullptr};
    }
    const std::int64_t rows = last.place + divide_up(last.rows, 2 * kTileRows) * 2 * kTileRows;
    const bool floats = w.type == WeightType::kBf16 && !last.tiles;  // then no group is multiplied by tiles
    const std::int64_t stored_bytes = steps * kStepBytes, row_bytes = floats ? 2 * stored_bytes : stored_bytes;
    const Inputs inputs{.x = scratch<std::byte>(Scratch::kInput, rows * row_bytes),
                        .row_bytes = row_bytes,
                        .sums = floats ? nullptr : scratch<std::int16_t>(Scratch::kSums, rows * steps * 2),
                        .row_scale = scratch<float>(Scratch::kRowScale, rows)};
    for_rows(groups, [&](const Group& group, std::int64_t r) {
      const std::int64_t place = group.place + r;
      std::byte* const to = inputs.x + place * row_bytes;
      const bool in_place = !group.tiles && !floats;
      std::byte* const row = in_place ? to : scratch<std::byte>(Scratch::kOutput, stored_bytes);
      inputs.row_scale[place] = store_row(row_of(group, r), row, stored_bytes);
      if (group.tiles) {
        std::byte* const tile = inputs.x + (place - r % kTileRows) * row_bytes + r % kTileRows * kStepBytes;
        for (std::int64_t s = 0; s < steps; ++s)
          std::memcpy(tile + s * kTileRows * kStepBytes, row + s * kStepBytes, kStepBytes);
      } else if (floats) {
        widen(reinterpret_cast<const Bf16*>(row), stored_bytes / 2, reinterpret_cast<float*>(to));
      } else {
        sum_groups(reinterpret_cast<const std::int8_t*>(row), 2 * steps, inputs.sums + place * steps * 2);
      }
    });
    return inputs;
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
