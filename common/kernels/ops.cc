#include "common/kernels/ops.h"

#include <omp.h>

#include <algorithm>
#include <cmath>

namespace outrider {
namespace {

/// A fork-join costs 3-4 us where the other threads still spin and 50 to 150 us where they must be woken or wait for a
/// busy core (docs/performance.md): it must save more than that. A norm or sum takes 0.1 ns an element, GeGLU 1 ns.
constexpr std::int64_t kElementsPerFork = 256 * 1024;
constexpr std::int64_t kGeluElementsPerFork = 64 * 1024;
constexpr std::int64_t kMacsPerFork = 64 * 1024;

template <typename Function>
void for_rows(std::int64_t rows, std::int64_t columns, Function function, std::int64_t elements_per_fork = kElementsPerFork) {
#pragma omp parallel for schedule(static) if (rows > 1 && rows * columns >= elements_per_fork)
  for (std::int64_t r = 0; r < rows; ++r) function(r);
}

/// Per-thread memory of one attention task; grows, is never freed before its thread ends.
float* attend_scratch(std::int64_t count) {
  thread_local AlignedArray<float> scratch;
  if (scratch.size() < static_cast<std::size_t>(count)) scratch = AlignedArray<float>(static_cast<std::size_t>(count));
  return scratch.data();
}

/// Keys of a row are attended to in spans of this many, whoever computes them. It covers a sliding window of the
/// published models, and a span's scores stay in the cache.
constexpr std::int64_t kKeySpan = 1024;

/// What the heads of one K/V head make of a span of keys: AttendArgs's results.
struct Partial {
  float *out, *largest, *sum;  ///< [group, head_dim], [group], [group]
  static std::int64_t floats(std::int64_t group, std::int64_t head_dim) { return group * (head_dim + 2); }
  Partial(float* memory, std::int64_t group, std::int64_t head_dim)
      : out(memory), largest(memory + group * head_dim), sum(largest + group) {}
};

template <typename Kv>
void attend_span(const float* q, const AttendRow& row, std::int64_t kv_head, std::int64_t group, std::int64_t span, float* scores,
                 const Partial& partial, void (*kernel)(const AttendArgs<Kv>&)) {
  const KvView& kv = row.kv;
  kernel({
      .q = q + kv_head * group * kv.head_dim,
      .q_stride = kv.head_dim,
      .heads = group,
      .head_dim = kv.head_dim,
      .k = static_cast<const Kv*>(kv.k) + kv_head * kv.head_dim,
      .v = static_cast<const Kv*>(kv.v) + kv_head * kv.head_dim,
      .row_stride = kv.num_key_value_heads * kv.head_dim,
      .capacity = kv.capacity,
      .first_slot = (row.first + span * kKeySpan) % kv.capacity,
      .count = std::min(kKeySpan, row.count - span * kKeySpan),
      .scores = scores,
      .out = partial.out,
      .out_stride = kv.head_dim,
      .largest = partial.largest,
      .sum = partial.sum,
  });
}

void attend_span(const float* q, const AttendRow& row, std::int64_t kv_head, std::int64_t group, std::int64_t span, float* scores, const Partial& partial) {
  if (row.kv.dtype == DType::kF32) {
    attend_span<float>(q, row, kv_head, group, span, scores, partial, kernels().attend_f32);
  } else {
    attend_span<Bf16>(q, row, kv_head, group, span, scores, partial, kernels().attend_bf16);
  }
}

/// to := to and `next` together.
void merge(const Partial& to, const Partial& next, std::int64_t group, std::int64_t head_dim) {
  for (std::int64_t h = 0; h < group; ++h) {
    const float largest = std::max(to.largest[h], next.largest[h]);
    const float keep = std::exp(to.largest[h] - largest), take = std::exp(next.largest[h] - largest);
    to.largest[h] = largest;
    to.sum[h] = to.sum[h] * keep + next.sum[h] * take;
    float* out = to.out + h * head_dim;
    const float* more = next.out + h * head_dim;
    for (std::int64_t d = 0; d < head_dim; ++d) out[d] = out[d] * keep + more[d] * take;
  }
}

std::int64_t spans(std::int64_t count) { return (count + kKeySpan - 1) / kKeySpan; }

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
  for_rows(gate.size(0), n, [&](std::int64_t r) { kernels().gelu_mul(gate[r].data(), up[r].data(), n, y[r].data()); }, kGeluElementsPerFork);
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
  const std::int64_t kv_heads = rows[0].kv.num_key_value_heads, head_dim = rows[0].kv.head_dim, group = q.size(1) / head_dim / kv_heads;
  const std::int64_t tasks = static_cast<std::int64_t>(rows.size()) * kv_heads, partial_floats = Partial::floats(group, head_dim);
  std::int64_t macs = 0, most_spans = 1;
  for (const AttendRow& row : rows) macs += row.count * q.size(1), most_spans = std::max(most_spans, spans(row.count));
  const auto finish = [&](std::int64_t r, std::int64_t h, const Partial& partial) {
    float* to = out[r].data() + h * group * head_dim;
    for (std::int64_t g = 0; g < group; ++g) {
      const float inverse = 1.0f / partial.sum[g];
      for (std::int64_t d = 0; d < head_dim; ++d) to[g * head_dim + d] = partial.out[g * head_dim + d] * inverse;
    }
  };

  // A task is one row's share of one K/V head: its result does not know about the others. Where there are too few
  // of them for the threads, a long row's spans are tasks too. They are put together in the same order either way,
  // so a row gets the same bits.
  const bool split = most_spans > 1 && tasks < omp_get_max_threads();
  AlignedArray<float> all(split ? static_cast<std::size_t>(tasks * most_spans * partial_floats) : 0);
  const auto partial_of = [&](std::int64_t task, std::int64_t span) { return Partial(all.data() + (task * most_spans + span) * partial_floats, group, head_dim); };
#pragma omp parallel if (macs >= kMacsPerFork)
  {
    float* const scores = attend_scratch(group * kKeySpan + 2 * partial_floats);
    if (split) {
#pragma omp for collapse(2) schedule(dynamic)
      for (std::int64_t t = 0; t < tasks; ++t) {
        for (std::int64_t s = 0; s < most_spans; ++s) {
          const std::int64_t r = t / kv_heads;
          const AttendRow& row = rows[static_cast<std::size_t>(r)];
          if (s < spans(row.count)) attend_span(q[r].data(), row, t % kv_heads, group, s, scores, partial_of(t, s));
        }
      }
    }
#pragma omp for schedule(dynamic)
    for (std::int64_t t = 0; t < tasks; ++t) {
      const std::int64_t r = t / kv_heads;
      const AttendRow& row = rows[static_cast<std::size_t>(r)];
      const Partial first = split ? partial_of(t, 0) : Partial(scores + group * kKeySpan, group, head_dim);
      const Partial next(scores + group * kKeySpan + partial_floats, group, head_dim);
      if (!split) attend_span(q[r].data(), row, t % kv_heads, group, 0, scores, first);
      for (std::int64_t s = 1; s < spans(row.count); ++s) {
        if (!split) attend_span(q[r].data(), row, t % kv_heads, group, s, scores, next);
        merge(first, split ? partial_of(t, s) : next, group, head_dim);
      }
      finish(r, t % kv_heads, first);
    }
  }
}

}  // namespace outrider
