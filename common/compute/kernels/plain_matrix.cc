// Any matrix of elements, by a dot product per output: used if nothing faster is exact.
#include <fmt/format.h>

#include "common/compute/kernels/isa.h"
#include "common/compute/kernels/packed_matrix.h"
#include "common/compute/kernels/team.h"

namespace outrider {
namespace {

class PlainMatrix final : public PackedMatrix {
 public:
  explicit PlainMatrix(const PackedWeights& weights)
      : PackedMatrix(as_rows(weights), fmt::format("plain {}", to_string(active_isa()))) {}

  void multiply(const float* x, std::int64_t rows, float* y, std::int64_t y_stride) const override {
    const PackedWeights& w = weights();
    const WeightFormat& format = format_of(w.type);
    const std::int64_t row_bytes = w.in * format.unit_bytes;
    auto* const input = scratch<std::byte>(Scratch::kInput, rows * row_bytes);
    auto* const row_scale = scratch<float>(Scratch::kRowScale, rows);
    team_for(rows, kInputsPerPiece / w.in + 1, [&](std::int64_t r) {
      row_scale[r] = format.store_row({x + r * w.in, static_cast<std::size_t>(w.in)}, r, input);
    });
    // Outputs of some rows, which stay in a core's cache. A thread's pieces follow each other.
    constexpr std::int64_t kRows = 8;
    const std::int64_t chunks = divide_up(rows, kRows), grain = kPieceBytes / row_bytes / std::min(rows, kRows) + 1;
    team_for(chunks * w.out, grain, [&](std::int64_t i) {
      const std::int64_t o = i % w.out, first = i / w.out * kRows, last = std::min(first + kRows, rows);
      const float scale = w.scales.empty() ? 1 : w.scales[static_cast<std::size_t>(o)];
      for (std::int64_t r = first; r < last; ++r)
        y[r * y_stride + o] =
            format.dot(input + r * row_bytes, w.bytes.data() + o * row_bytes, w.in, row_scale[r], scale);
    });
  }
};

}  // namespace

std::shared_ptr<const PackedMatrix> make_plain(const PackedWeights& weights) {
  if (!format_of(weights.type).is_elements()) return nullptr;
  return std::make_shared<PlainMatrix>(weights);
}

}  // namespace outrider
