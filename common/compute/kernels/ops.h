#pragma once

#include <cstdint>
#include <vector>

#include "common/compute/kernels/kernel_table.h"
#include "common/compute/kernels/team.h"
#include "common/compute/tensor/tensor.h"

namespace outrider {

// Row-wise operations over matrices, on the active instruction set, with rows spread over the team if there is enough
// work. A row's result never depends on the other rows.

/// Calls function(row) for the rows of x, on the team if that takes some microseconds: a norm takes 0.2 ns an element.
template <typename T, typename Function>
void for_rows(Matrix<T> x, Function function) {
  constexpr std::int64_t kElementsPerTeam = 16 * 1024, kElementsPerPiece = 2 * 1024;
  const std::int64_t rows = x.size(0), columns = x.size(1);
  team_for(rows, rows * columns < kElementsPerTeam ? rows : kElementsPerPiece / columns + 1, function);
}

/// y = rms_norm(x) * weight, per row (gemma4.md 3.0; the weight is w, not 1 + w).
/// weight: [columns] or empty for the scale-less form. y may be x.
void rms_norm(Matrix<const float> x, std::span<const float> weight, float eps, Matrix<float> y);

/// The same over `heads` consecutive blocks of head_dim columns of every row, in place.
void rms_norm_heads(Matrix<float> x, std::int64_t head_dim, std::span<const float> weight, float eps);

/// y = gelu_tanh(gate) * up. y may be gate or up.
void gelu_mul(Matrix<const float> gate, Matrix<const float> up, Matrix<float> y);

/// x += y
void add_in_place(Matrix<float> x, Matrix<const float> y);

/// x *= factor
void scale_in_place(Matrix<float> x, float factor);

/// x = cap * tanh(x / cap)
void softcap_in_place(Matrix<float> x, float cap);

/// cos and sin of one position: [pairs] each.
struct RopeAngles {
  std::vector<float> cos, sin;
};

/// Angles of `position` for inverse frequencies inv_freq [pairs], computed in float32 like the reference (transformers
/// multiplies position and frequency in float32).
RopeAngles rope_angles(std::int64_t position, std::span<const float> inv_freq);

/// Rotates every head (head_dim columns) of `row` in place: pairs (i, i + head_dim / 2) (gemma4.md 3.6).
void rope_heads(std::span<float> row, std::int64_t head_dim, const RopeAngles& angles);

/// Index of the largest value, the lowest among equals.
std::int64_t argmax(std::span<const float> x);

bool all_finite(std::span<const float> x);

/// K/V rows of one layer: a ring of `capacity` rows; position p is in slot p mod capacity. Type-erased over the element
/// type (float or bf16).
struct KvView {
  DType dtype = DType::kF32;
  const void* k = nullptr;  ///< [capacity, num_key_value_heads * head_dim]
  const void* v = nullptr;
  std::int64_t capacity = 0;
  std::int64_t num_key_value_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t row_stride = 0;  ///< elements from one row to the next; 0: the row's length

  /// Returns some of the heads of the same rows.
  KvView heads(std::int64_t first, std::int64_t count) const;
};

/// One query row: its cache and its visible positions.
struct AttendRow {
  KvView kv;
  std::int64_t first = 0;  ///< first visible position
  std::int64_t count = 0;  ///< number of visible positions, >= 1
};

/// out[r] = softmax(q[r] . k) . v for every head, over the keys visible to row r (gemma4.md 3.4: scores are not
/// scaled). q and out: [rows, num_attention_heads * head_dim]; query head j reads K/V head j / (num_attention_heads /
/// num_key_value_heads). Row r depends on q[r] and rows[r] only.
void attend(Matrix<const float> q, std::span<const AttendRow> rows, Matrix<float> out);

}  // namespace outrider
