// int8 and bfloat16 with AMX, where a matrix is whole blocks and steps (kernel_table.h), over weights that lie as
// oneDNN packs them: one pack serves both, and either can be measured beside the other (ADR 5).
#include <cstring>

#include "common/kernels/isa.h"
#include "common/kernels/kernel_table.h"
#include "common/kernels/packed_matrix.h"
#include "common/tensor/tensor.h"

namespace outrider {
namespace {

class AmxMatrix final : public PackedMatrix {
 public:
  AmxMatrix(PackedWeights weights, void (*gemm)(const AmxArgs&))
      : PackedMatrix(std::move(weights), "amx"), gemm_(gemm) {}

  void multiply(const float* x, std::int64_t rows, float* y) const override {
    const PackedWeights& w = weights();
    const WeightFormat& format = format_of(w.type);
    const std::int64_t row_bytes = w.in * format.unit_bytes, tile_pairs = (rows + 2 * kAmxRows - 1) / (2 * kAmxRows);
    auto* const input = scratch<std::byte>(Scratch::kInput, tile_pairs * 2 * kAmxRows * row_bytes);
    auto* const row_scale = scratch<float>(Scratch::kRowScale, rows);
#pragma omp parallel
    {
      auto* const row = scratch<std::byte>(Scratch::kOutput, row_bytes);
#pragma omp for schedule(static)
      for (std::int64_t r = 0; r < rows; ++r) {
        row_scale[r] = format.store_row({x + r * w.in, static_cast<std::size_t>(w.in)}, 0, row);
        std::byte* const to = input + r / kAmxRows * kAmxRows * row_bytes + r % kAmxRows * kAmxStepBytes;
        for (std::int64_t i = 0; i < row_bytes; i += kAmxStepBytes)
          std::memcpy(to + i * kAmxRows, row + i, kAmxStepBytes);
      }
      for_blocks(rows, w.out / kAmxBlockOutputs, [&](std::int64_t b) {
        gemm_({.weights = w.bytes.data() + b * row_bytes * kAmxBlockOutputs,
               .steps = row_bytes / kAmxStepBytes,
               .x = input,
               .rows = rows,
               .row_scale = row_scale,
               .column_scale = w.scales.empty() ? nullptr : w.scales.data() + b * kAmxBlockOutputs,
               .y = y + b * kAmxBlockOutputs,
               .y_stride = w.out});
      });
    }
  }

 private:
  void (*gemm_)(const AmxArgs&);
};

/// Rows [out, in] as blocks.
PackedWeights pack(const PackedWeights& rows, const char* layout) {
  const auto memory = std::make_shared<AlignedArray<std::byte>>(rows.bytes.size());
  const std::int64_t row_bytes = std::ssize(rows.bytes) / rows.out;
#pragma omp parallel for schedule(static)
  for (std::int64_t b = 0; b < rows.out / kAmxBlockOutputs; ++b) {
    const std::byte* from = rows.bytes.data() + b * kAmxBlockOutputs * row_bytes;
    std::byte* to = memory->data() + b * kAmxBlockOutputs * row_bytes;
    for (std::int64_t step = 0; step < row_bytes; step += kAmxStepBytes, to += kAmxStepBytes * kAmxBlockOutputs) {
      for (std::int64_t o = 0; o < kAmxBlockOutputs; ++o) {
        for (std::int64_t i = 0; i < kAmxStepBytes; i += 4)
          std::memcpy(to + i * kAmxBlockOutputs + o * 4, from + o * row_bytes + step + i, 4);
      }
    }
  }
  return {rows.type, rows.in, rows.out, layout, memory->span(), memory, rows.scales};
}

}  // namespace

std::shared_ptr<const PackedMatrix> make_amx(const PackedWeights& weights) {
  const bool int8 = weights.type == WeightType::kInt8;
  if (active_isa() != Isa::kAmx || (!int8 && weights.type != WeightType::kBf16)) return nullptr;
  const std::int64_t row_bytes = weights.in * format_of(weights.type).unit_bytes;
  if (row_bytes % kAmxStepBytes != 0 || weights.out % kAmxBlockOutputs != 0) return nullptr;
  const char* const layout = int8 ? "BA16a64b4a" : "BA16a64b2a";
  return std::make_shared<AmxMatrix>(weights.layout == layout ? weights : pack(as_rows(weights), layout),
                                     int8 ? gemm_int8_amx : gemm_bf16_amx);
}

}  // namespace outrider
