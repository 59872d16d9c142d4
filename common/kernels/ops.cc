#include "common/kernels/ops.h"

#include <omp.h>

#include <cmath>

namespace outrider {
namespace {

/// A fork-join costs 3-4 us (design/onednn.md section 8); below this much work one thread is faster.
constexpr std::int64_t kElementsPerFork = 32 * 1024;
constexpr std::int64_t kMacsPerFork = 64 * 1024;

template <typename Function>
void for_rows(std::int64_t rows, std::int64_t columns, Function function) {
#pragma omp parallel for schedule(static) if (rows > 1 && rows * columns >= kElementsPerFork)
  for (std::int64_t r = 0; r < rows; ++r) function(r);
}

/// Scratch for the scores of one task; grows, is never freed before its thread ends.
float* score_scratch(std::int64_t count) {
  thread_local AlignedArray<float> scratch;
  if (scratch.size() < static_cast<std::size_t>(count)) scratch = AlignedArray<float>(static_cast<std::size_t>(2 * count));
  return scratch.data();
}

template <typename Kv>
void attend_one(Matrix<const float> q, Matrix<float> out, const AttendRow& row, std::int64_t r,
                std::int64_t kv_head, void (*kernel)(const AttendArgs<Kv>&)) {
  const KvView& kv = row.kv;
  const std::int64_t group = q.size(1) / kv.head_dim / kv.num_key_value_heads;
  const std::int64_t first_column = kv_head * group * kv.head_dim;
  kernel({
      .q = q[r].data() + first_column,
      .q_stride = kv.head_dim,
      .heads = group,
      .head_dim = kv.head_dim,
      .k = static_cast<const Kv*>(kv.k) + kv_head * kv.head_dim,
      .v = static_cast<const Kv*>(kv.v) + kv_head * kv.head_dim,
      .row_stride = kv.num_key_value_heads * kv.head_dim,
      .capacity = kv.capacity,
      .first_slot = row.first % kv.capacity,
      .count = row.count,
      .scores = score_scratch(group * row.count),
      .out = out[r].data() + first_column,
      .out_stride = kv.head_dim,
  });
}

}  // namespace

void rms_norm(Matrix<const float> x, std::span<const float> weight, float eps, Matrix<float> y) {
  const std::int64_t n = x.size(1);
  const float* w = weight.empty() ? nullptr : weight.data();
  for_rows(x.size(0), n, [&](std::int64_t r) { kernels().rms_norm(x[r].data(), w, eps, n, y[r].data()); });
}

void rms_norm_heads(Matrix<float> x, std::int64_t head_dim, std::span<const float> weight, float eps) {
  const float* w = weight.empty() ? nullptr : weight.data();
  for_rows(x.size(0), x.size(1), [&](std::int64_t r) {
    float* row = x[r].data();
    for (std::int64_t c = 0; c < x.size(1); c += head_dim) kernels().rms_norm(row + c, w, eps, head_dim, row + c);
  });
}

void gelu_mul(Matrix<const float> gate, Matrix<const float> up, Matrix<float> y) {
  const std::int64_t n = gate.size(1);
  for_rows(gate.size(0), n, [&](std::int64_t r) { kernels().gelu_mul(gate[r].data(), up[r].data(), n, y[r].data()); });
}

void add_in_place(Matrix<float> x, Matrix<const float> y) {
  for_rows(x.size(0), x.size(1), [&](std::int64_t r) { kernels().add(x[r].data(), y[r].data(), x.size(1)); });
}

void scale_in_place(Matrix<float> x, float factor) {
  for_rows(x.size(0), x.size(1), [&](std::int64_t r) { kernels().scale(x[r].data(), factor, x.size(1)); });
}

void softcap_in_place(Matrix<float> x, float cap) {
  for_rows(x.size(0), x.size(1), [&](std::int64_t r) { kernels().softcap(x[r].data(), cap, x.size(1)); });
}

RopeAngles rope_angles(std::int64_t position, std::span<const float> inv_freq) {
  RopeAngles angles{std::vector<float>(inv_freq.size()), std::vector<float>(inv_freq.size())};
  for (std::size_t i = 0; i < inv_freq.size(); ++i) {
    const float angle = static_cast<float>(position) * inv_freq[i];
    angles.cos[i] = std::cos(angle);
    angles.sin[i] = std::sin(angle);
  }
  return angles;
}

void rope_heads(std::span<float> row, std::int64_t head_dim, const RopeAngles& angles) {
  for (std::size_t c = 0; c < row.size(); c += static_cast<std::size_t>(head_dim)) {
    kernels().rope(row.data() + c, angles.cos.data(), angles.sin.data(), head_dim / 2);
  }
}

std::int64_t argmax(std::span<const float> x) {
  return kernels().argmax(x.data(), static_cast<std::int64_t>(x.size()));
}

void attend(Matrix<const float> q, std::span<const AttendRow> rows, Matrix<float> out) {
  if (rows.empty()) return;
  const std::int64_t kv_heads = rows[0].kv.num_key_value_heads;
  std::int64_t macs = 0;
  for (const AttendRow& row : rows) macs += row.count * q.size(1);
  // One task is one row's share of one K/V head: its result does not know about the others.
#pragma omp parallel for collapse(2) schedule(dynamic) if (macs >= kMacsPerFork)
  for (std::int64_t r = 0; r < static_cast<std::int64_t>(rows.size()); ++r) {
    for (std::int64_t h = 0; h < kv_heads; ++h) {
      const AttendRow& row = rows[static_cast<std::size_t>(r)];
      if (row.kv.dtype == DType::kF32) {
        attend_one<float>(q, out, row, r, h, kernels().attend_f32);
      } else {
        attend_one<Bf16>(q, out, row, r, h, kernels().attend_bf16);
      }
    }
  }
}

}  // namespace outrider
