#include "common/kernels/ops.h"

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace outrider {
namespace {

/// A fork-join costs 3-4 us where the other threads still spin and 50 to 150 us where they must be woken or wait for a
/// busy core (docs/lab/engine.md): it must save more than that. A norm or sum takes 0.1 ns an element, GeGLU 1 ns.
constexpr std::int64_t kElementsPerFork = 256 * 1024;
constexpr std::int64_t kGeluElementsPerFork = 64 * 1024;
constexpr std::int64_t kMacsPerFork = 64 * 1024;

template <typename Function>
void for_rows(std::int64_t rows, std::int64_t columns, Function function,
              std::int64_t elements_per_fork = kElementsPerFork) {
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

std::int64_t spans(const AttendRow& row) { return (row.count + kKeySpan - 1) / kKeySpan; }

/// Queries (heads of rows) that read the keys together. More would read them less often, but their sums would leave
/// the second level of the cache.
constexpr std::int64_t kQueriesMax = 64;

/// Consecutive rows [first, end) of one text.
struct RowGroup {
  std::int64_t first, end;
};

/// Groups of at most rows_max rows of one cache, which ascend as those of a text do: their first keys are near each
/// other, and somebody sees every key between the first and the last.
std::vector<RowGroup> row_groups(std::span<const AttendRow> rows, std::int64_t rows_max) {
  std::vector<RowGroup> groups;
  for (std::int64_t r = 0; r < std::ssize(rows); ++r) {
    const AttendRow& row = rows[static_cast<std::size_t>(r)];
    const auto joins = [&](const RowGroup& group) {
      const AttendRow &begin = rows[static_cast<std::size_t>(group.first)],
                      &before = rows[static_cast<std::size_t>(r - 1)];
      const std::int64_t end = row.first + row.count, end_before = before.first + before.count;
      return r - group.first < rows_max && row.kv.k == begin.kv.k && before.first <= row.first &&
             row.first < begin.first + kQueriesMax && row.first <= end_before && end_before <= end &&
             end <= begin.first + row.kv.capacity;
    };
    if (groups.empty() || !joins(groups.back())) groups.push_back({r, r});
    groups.back().end = r + 1;
  }
  return groups;
}

template <typename Kv>
void attend_keys(const KvView& kv, std::int64_t kv_head, std::int64_t first, std::int64_t count,
                 std::span<const AttendQuery> queries, void (*kernel)(const AttendArgs<Kv>&)) {
  kernel({
      .queries = queries.data(),
      .query_count = std::ssize(queries),
      .head_dim = kv.head_dim,
      .k = static_cast<const Kv*>(kv.k) + kv_head * kv.head_dim,
      .v = static_cast<const Kv*>(kv.v) + kv_head * kv.head_dim,
      .row_stride = kv.num_key_value_heads * kv.head_dim,
      .capacity = kv.capacity,
      .first = first,
      .count = count,
  });
}

/// `queries` against the keys of positions [first, first + count).
void attend_keys(const KvView& kv, std::int64_t kv_head, std::int64_t first, std::int64_t count,
                 std::span<const AttendQuery> queries) {
  if (kv.dtype == DType::kF32) {
    attend_keys<float>(kv, kv_head, first, count, queries, kernels().attend_f32);
  } else {
    attend_keys<Bf16>(kv, kv_head, first, count, queries, kernels().attend_bf16);
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
  for_rows(
      gate.size(0), n, [&](std::int64_t r) { kernels().gelu_mul(gate[r].data(), up[r].data(), n, y[r].data()); },
      kGeluElementsPerFork);
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
  const KvView& shape = rows[0].kv;
  const std::int64_t kv_heads = shape.num_key_value_heads, head_dim = shape.head_dim,
                     heads = q.size(1) / head_dim / kv_heads;
  const std::int64_t partial_floats = Partial::floats(heads, head_dim), threads = omp_get_max_threads();
  std::int64_t macs = 0, most_spans = 1, all_spans = 0;
  for (const AttendRow& row : rows) {
    macs += row.count * q.size(1), all_spans += spans(row) * kv_heads, most_spans = std::max(most_spans, spans(row));
  }

  // A task is what a group of rows makes of one K/V head, or of a span of it where there are too few tasks for the
  // threads. A row's spans are put together in ascending order whoever computed them, so that how work is dealt out
  // changes no bit.
  const std::int64_t rows_max = std::clamp(all_spans / threads, std::int64_t{1},
                                           std::max(std::min(kQueriesMax / heads, std::ssize(rows)), std::int64_t{1}));
  const std::vector<RowGroup> groups = row_groups(rows, rows_max);
  const std::int64_t tasks = std::ssize(groups) * kv_heads;
  const bool split = most_spans > 1 && tasks < threads;
  const std::int64_t task_floats = rows_max * partial_floats;
  AlignedArray<float> all(split ? static_cast<std::size_t>(tasks * most_spans * task_floats) : 0);
  const auto group_of = [&](std::int64_t task) { return groups[static_cast<std::size_t>(task / kv_heads)]; };
  const auto row_of = [&](std::int64_t r) -> const AttendRow& { return rows[static_cast<std::size_t>(r)]; };
  /// Of the task's r-th row, in memory of task_floats.
  const auto partial_of = [&](float* memory, std::int64_t r) {
    return Partial(memory + r * partial_floats, heads, head_dim);
  };

  const auto attend_span = [&](std::int64_t task, std::int64_t span, std::vector<AttendQuery>& queries, float* scores,
                               float* partials) {
    const RowGroup group = group_of(task);
    const auto begin = [&](std::int64_t r) { return row_of(r).first + span * kKeySpan; };
    const auto end = [&](std::int64_t r) { return row_of(r).first + std::min(row_of(r).count, (span + 1) * kKeySpan); };
    std::int64_t first = std::numeric_limits<std::int64_t>::max(), last = 0;
    for (std::int64_t r = group.first; r < group.end; ++r) {
      if (begin(r) < end(r)) first = std::min(first, begin(r)), last = std::max(last, end(r));
    }
    queries.clear();
    for (std::int64_t r = group.first; r < group.end; ++r) {
      if (begin(r) >= end(r)) continue;
      const Partial partial = partial_of(partials, r - group.first);
      for (std::int64_t h = 0; h < heads; ++h, scores += last - first) {
        queries.push_back({.q = q[r].data() + (task % kv_heads * heads + h) * head_dim,
                           .begin = begin(r) - first,
                           .end = end(r) - first,
                           .scores = scores,
                           .out = partial.out + h * head_dim,
                           .largest = partial.largest + h,
                           .sum = partial.sum + h});
      }
    }
    attend_keys(row_of(group.first).kv, task % kv_heads, first, last - first, queries);
  };
  const auto finish = [&](std::int64_t r, std::int64_t kv_head, const Partial& partial) {
    float* to = out[r].data() + kv_head * heads * head_dim;
    for (std::int64_t h = 0; h < heads; ++h) {
      const float inverse = 1.0f / partial.sum[h];
      for (std::int64_t d = 0; d < head_dim; ++d) to[h * head_dim + d] = partial.out[h * head_dim + d] * inverse;
    }
  };
  const std::int64_t score_floats = rows_max * heads * (kKeySpan + kQueriesMax);
#pragma omp parallel if (macs >= kMacsPerFork)
  {
    float* const scores = attend_scratch(score_floats + 2 * task_floats);
    std::vector<AttendQuery> queries;
    const auto span_memory = [&](std::int64_t task, std::int64_t span) {
      return split ? all.data() + (task * most_spans + span) * task_floats
                   : scores + score_floats + (span == 0 ? 0 : task_floats);
    };
    const auto task_spans = [&](std::int64_t task) {
      std::int64_t most = 0;
      for (std::int64_t r = group_of(task).first; r < group_of(task).end; ++r) most = std::max(most, spans(row_of(r)));
      return most;
    };
    if (split) {
#pragma omp for collapse(2) schedule(dynamic)
      for (std::int64_t t = 0; t < tasks; ++t) {
        for (std::int64_t s = 0; s < most_spans; ++s) {
          if (s < task_spans(t)) attend_span(t, s, queries, scores, span_memory(t, s));
        }
      }
    }
#pragma omp for schedule(dynamic)
    for (std::int64_t t = 0; t < tasks; ++t) {
      const RowGroup group = group_of(t);
      for (std::int64_t s = 0; s < task_spans(t); ++s) {
        if (!split) attend_span(t, s, queries, scores, span_memory(t, s));
        for (std::int64_t r = group.first; s > 0 && r < group.end; ++r) {
          if (s < spans(row_of(r)))
            merge(partial_of(span_memory(t, 0), r - group.first), partial_of(span_memory(t, s), r - group.first), heads,
                  head_dim);
        }
      }
      for (std::int64_t r = group.first; r < group.end; ++r)
        finish(r, t % kv_heads, partial_of(span_memory(t, 0), r - group.first));
    }
  }
}

}  // namespace outrider
