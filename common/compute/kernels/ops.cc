#include "common/compute/kernels/ops.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>

#include "common/compute/kernels/team.h"

namespace outrider {
namespace {

/// Elements per piece of a team's work, one or two microseconds: GeGLU and softcap take less than 1 ns an element, a
/// comparison 0.1 ns.
constexpr std::int64_t kFunctionsPerPiece = 4 * 1024;
constexpr std::int64_t kComparedPerPiece = 16 * 1024;
constexpr std::int64_t kMultiplicationsPerTeam = 64 * 1024;

/// Calls function(begin, end) for pieces of a row.
template <typename Function>
void for_pieces(std::int64_t elements, std::int64_t per_piece, Function function) {
  team_for((elements + per_piece - 1) / per_piece, 1,
           [&](std::int64_t piece) { function(piece * per_piece, std::min((piece + 1) * per_piece, elements)); });
}

/// Calls function(row, begin, end) for parts of rows with independent elements.
template <typename Function>
void for_parts(Matrix<float> x, Function function) {
  const std::int64_t parts = (x.size(1) + kFunctionsPerPiece - 1) / kFunctionsPerPiece;
  team_for(x.size(0) * parts, 1, [&](std::int64_t i) {
    const std::int64_t begin = i % parts * kFunctionsPerPiece;
    function(i / parts, begin, std::min(begin + kFunctionsPerPiece, x.size(1)));
  });
}

/// Makes room for `count` floats in a thread's scratch memory, which is never freed before the thread ends.
float* reserve(AlignedArray<float>& scratch, std::int64_t count) {
  if (scratch.size() < static_cast<std::size_t>(count)) scratch = AlignedArray<float>(static_cast<std::size_t>(count));
  return scratch.data();
}

/// Per-thread memory of an attention task.
float* attend_scratch(std::int64_t count) {
  thread_local AlignedArray<float> scratch;
  return reserve(scratch, count);
}

/// Keys per span of a row's attention, for every thread alike. A span covers the published models' sliding window, and
/// its scores stay in the cache.
constexpr std::int64_t kKeySpan = 1024;

std::int64_t spans(const AttendRow& row) { return (row.count + kKeySpan - 1) / kKeySpan; }

/// Queries (heads of rows) that read the keys together. More would read them less often, but their sums would leave the
/// L2 cache.
constexpr std::int64_t kQueriesMax = 64;

/// Consecutive rows of one sequence.
struct RowGroup {
  std::int64_t first;
  std::span<const AttendRow> rows;
  std::int64_t spans = 0;  ///< of the row with the most
};

/// Forms groups of at most rows_max ascending rows of one cache: their first keys are close together, and every key
/// between the first and the last is visible to some row.
std::vector<RowGroup> row_groups(std::span<const AttendRow> rows, std::int64_t rows_max) {
  std::vector<RowGroup> groups;
  for (const AttendRow& row : rows) {
    const auto joins = [&](const RowGroup& group) {
      const AttendRow &begin = group.rows.front(), &before = group.rows.back();
      const std::int64_t end = row.first + row.count, end_before = before.first + before.count;
      return std::ssize(group.rows) < rows_max && row.kv.k == begin.kv.k && before.first <= row.first &&
             row.first < begin.first + kQueriesMax && row.first <= end_before && end_before <= end &&
             end <= begin.first + row.kv.capacity;
    };
    if (groups.empty() || !joins(groups.back())) groups.push_back({&row - rows.data(), {&row, 0}});
    RowGroup& group = groups.back();
    group.rows = {group.rows.data(), group.rows.size() + 1};
    group.spans = std::max(group.spans, spans(row));
  }
  return groups;
}

/// Results of a row's query head for a span of keys: those of AttendQuery.
struct Partial {
  float *out, *largest, *sum;  ///< [head_dim], of one head
};

/// Distribution of attention. A task is a group of rows with one K/V head. If there are fewer tasks than threads, each
/// span of a task is computed separately. A row's spans are always merged in ascending order, so that the distribution
/// does not change the bits.
struct AttentionPlan {
  AttentionPlan(std::span<const AttendRow> rows, std::int64_t columns, std::int64_t threads);

  std::int64_t tasks() const { return std::ssize(groups) * kv_heads; }
  const RowGroup& group(std::int64_t task) const { return groups[static_cast<std::size_t>(task / kv_heads)]; }
  std::int64_t kv_head(std::int64_t task) const { return task % kv_heads; }
  /// Column in q and out of the task's first query head.
  std::int64_t first_column(std::int64_t task) const { return kv_head(task) * heads * head_dim; }

  /// Floats for the scores of a task's span, and for its results.
  std::int64_t score_floats() const { return rows_max * heads * (kKeySpan + kQueriesMax); }
  std::int64_t result_floats() const { return rows_max * heads * (head_dim + 2); }
  /// Results of a head of the group's i-th row, in memory of result_floats().
  Partial partial(float* memory, std::size_t i, std::int64_t head) const {
    float* const out = memory + static_cast<std::int64_t>(i) * heads * (head_dim + 2);
    return {out + head * head_dim, out + heads * head_dim + head, out + heads * (head_dim + 1) + head};
  }

  std::int64_t kv_heads, head_dim;
  std::int64_t heads;  ///< query heads of a K/V head
  std::int64_t multiplications = 0, spans_max = 1;
  std::int64_t rows_max;  ///< of a group
  std::vector<RowGroup> groups;
  bool split;  ///< spans are computed separately
};

AttentionPlan::AttentionPlan(std::span<const AttendRow> rows, std::int64_t columns, std::int64_t threads)
    : kv_heads(rows[0].kv.num_key_value_heads), head_dim(rows[0].kv.head_dim), heads(columns / head_dim / kv_heads) {
  std::int64_t all_spans = 0;
  for (const AttendRow& row : rows) {
    multiplications += row.count * columns;
    all_spans += spans(row) * kv_heads;
    spans_max = std::max(spans_max, spans(row));
  }
  rows_max = std::clamp(all_spans / threads, std::int64_t{1},
                        std::max(std::min(kQueriesMax / heads, std::ssize(rows)), std::int64_t{1}));
  groups = row_groups(rows, rows_max);
  split = spans_max > 1 && tasks() < threads;
}

/// Computes one span of a task.
/// @param queries, scores  scratch
/// @param results  [result_floats()]
void attend_span(const AttentionPlan& plan, Matrix<const float> q, std::int64_t task, std::int64_t span,
                 std::vector<AttendQuery>& queries, float* scores, float* results) {
  const RowGroup& group = plan.group(task);
  const auto begin = [&](const AttendRow& row) { return row.first + span * kKeySpan; };
  const auto end = [&](const AttendRow& row) { return row.first + std::min(row.count, (span + 1) * kKeySpan); };
  std::int64_t first = std::numeric_limits<std::int64_t>::max(), last = 0;
  for (const AttendRow& row : group.rows) {
    if (begin(row) < end(row)) first = std::min(first, begin(row)), last = std::max(last, end(row));
  }
  queries.clear();
  for (std::size_t i = 0; i < group.rows.size(); ++i) {
    const AttendRow& row = group.rows[i];
    if (begin(row) >= end(row)) continue;
    const float* head = q[group.first + static_cast<std::int64_t>(i)].data() + plan.first_column(task);
    for (std::int64_t h = 0; h < plan.heads; ++h, head += plan.head_dim, scores += last - first) {
      const Partial partial = plan.partial(results, i, h);
      queries.push_back({.q = head,
                         .begin = begin(row) - first,
                         .end = end(row) - first,
                         .scores = scores,
                         .out = partial.out,
                         .largest = partial.largest,
                         .sum = partial.sum});
    }
  }
  const KvView& kv = group.rows[0].kv;
  const auto run = [&]<typename Kv>(void (*kernel)(const AttendArgs<Kv>&)) {
    kernel({.queries = queries.data(),
            .query_count = std::ssize(queries),
            .head_dim = plan.head_dim,
            .k = static_cast<const Kv*>(kv.k) + plan.kv_head(task) * plan.head_dim,
            .v = static_cast<const Kv*>(kv.v) + plan.kv_head(task) * plan.head_dim,
            .row_stride = kv.row_stride > 0 ? kv.row_stride : plan.kv_heads * plan.head_dim,
            .capacity = kv.capacity,
            .first = first,
            .count = last - first});
  };
  kv.dtype == DType::kF32 ? run(kernels().attend_f32) : run(kernels().attend_bf16);
}

/// Merges a head's results of a task's later span into those so far.
void merge_span(const AttentionPlan& plan, std::int64_t task, std::int64_t head, std::int64_t span, float* results,
                float* later) {
  const RowGroup& group = plan.group(task);
  for (std::size_t i = 0; i < group.rows.size(); ++i) {
    if (span >= spans(group.rows[i])) continue;
    const Partial to = plan.partial(results, i, head), next = plan.partial(later, i, head);
    const float largest = std::max(*to.largest, *next.largest);
    const float keep = std::exp(*to.largest - largest), take = std::exp(*next.largest - largest);
    *to.largest = largest;
    *to.sum = *to.sum * keep + *next.sum * take;
    for (std::int64_t d = 0; d < plan.head_dim; ++d) to.out[d] = to.out[d] * keep + next.out[d] * take;
  }
}

/// Divides a head's results of a task by their sums.
void write_head(const AttentionPlan& plan, std::int64_t task, std::int64_t head, float* results, Matrix<float> out) {
  const RowGroup& group = plan.group(task);
  for (std::size_t i = 0; i < group.rows.size(); ++i) {
    const Partial partial = plan.partial(results, i, head);
    float* const to =
        out[group.first + static_cast<std::int64_t>(i)].data() + plan.first_column(task) + head * plan.head_dim;
    const float inverse = 1.0f / *partial.sum;
    for (std::int64_t d = 0; d < plan.head_dim; ++d) to[d] = partial.out[d] * inverse;
  }
}

}  // namespace

KvView KvView::heads(std::int64_t first, std::int64_t count) const {
  if (count == num_key_value_heads) return *this;
  const auto from = [&](const void* rows) {
    return static_cast<const std::byte*>(rows) + static_cast<std::size_t>(first * head_dim) * size_bytes(dtype);
  };
  KvView some = *this;
  some.k = from(k), some.v = from(v);
  some.num_key_value_heads = count;
  some.row_stride = row_stride > 0 ? row_stride : num_key_value_heads * head_dim;
  return some;
}

void rms_norm(Matrix<const float> x, std::span<const float> weight, float eps, Matrix<float> y) {
  const std::int64_t n = x.size(1);
  const float* w = weight.empty() ? nullptr : weight.data();
  for_rows(x, [&](std::int64_t r) { kernels().rms_norm(x[r].data(), w, eps, n, y[r].data()); });
}

void rms_norm_heads(Matrix<float> x, std::int64_t head_dim, std::span<const float> weight, float eps) {
  const float* w = weight.empty() ? nullptr : weight.data();
  for_rows(x, [&](std::int64_t r) {
    float* row = x[r].data();
    for (std::int64_t c = 0; c < x.size(1); c += head_dim) kernels().rms_norm(row + c, w, eps, head_dim, row + c);
  });
}

void gelu_mul(Matrix<const float> gate, Matrix<const float> up, Matrix<float> y) {
  for_parts(y, [&](std::int64_t r, std::int64_t begin, std::int64_t end) {
    kernels().gelu_mul(gate[r].data() + begin, up[r].data() + begin, end - begin, y[r].data() + begin);
  });
}

void add_in_place(Matrix<float> x, Matrix<const float> y) {
  for_rows(x, [&](std::int64_t r) { kernels().add(x[r].data(), y[r].data(), x.size(1)); });
}

void scale_in_place(Matrix<float> x, float factor) {
  for_rows(x, [&](std::int64_t r) { kernels().scale(x[r].data(), factor, x.size(1)); });
}

void softcap_in_place(Matrix<float> x, float cap) {
  for_parts(x, [&](std::int64_t r, std::int64_t begin, std::int64_t end) {
    kernels().softcap(x[r].data() + begin, cap, end - begin);
  });
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
  const auto n = static_cast<std::int64_t>(x.size());
  if (n <= kComparedPerPiece) return kernels().argmax(x.data(), n);
  std::vector<std::int64_t> best(static_cast<std::size_t>((n + kComparedPerPiece - 1) / kComparedPerPiece));
  for_pieces(n, kComparedPerPiece, [&](std::int64_t begin, std::int64_t end) {
    best[static_cast<std::size_t>(begin / kComparedPerPiece)] = begin + kernels().argmax(x.data() + begin, end - begin);
  });
  return *std::ranges::max_element(best, {}, [&](std::int64_t i) { return x[static_cast<std::size_t>(i)]; });
}

bool all_finite(std::span<const float> x) {
  std::atomic<bool> all = true;
  for_pieces(std::ssize(x), kComparedPerPiece, [&](std::int64_t begin, std::int64_t end) {
    bool ok = true;
    for (std::int64_t i = begin; i < end; ++i)
      ok &= std::abs(x[static_cast<std::size_t>(i)]) <= std::numeric_limits<float>::max();
    if (!ok) all = false;
  });
  return all;
}

void attend(Matrix<const float> q, std::span<const AttendRow> rows, Matrix<float> out) {
  if (rows.empty()) return;
  const AttentionPlan plan(rows, q.size(1), team_size());
  const std::int64_t tasks = plan.tasks(), heads = plan.heads, spans_max = plan.spans_max,
                     floats = plan.result_floats();
  const bool is_small = plan.multiplications < kMultiplicationsPerTeam;
  const auto in_pieces = [&](std::int64_t count, auto work) {
    team_run(count, is_small ? count : 1, [&](std::int64_t begin, std::int64_t end) {
      float* const scores = attend_scratch(plan.score_floats() + 2 * floats);
      std::vector<AttendQuery> queries;
      for (std::int64_t i = begin; i < end; ++i) work(i, scores, scores + plan.score_floats(), queries);
    });
  };
  if (!plan.split) {
    return in_pieces(tasks, [&](std::int64_t t, float* scores, float* results, std::vector<AttendQuery>& queries) {
      for (std::int64_t s = 0; s < plan.group(t).spans; ++s) {
        attend_span(plan, q, t, s, queries, scores, s == 0 ? results : results + floats);
        for (std::int64_t h = 0; s > 0 && h < heads; ++h) merge_span(plan, t, h, s, results, results + floats);
      }
      for (std::int64_t h = 0; h < heads; ++h) write_head(plan, t, h, results, out);
    });
  }
  // Kept from call to call: for five rows of 31B at 131,072 positions they are 42 MB.
  thread_local AlignedArray<float> all;
  float* const first = reserve(all, tasks * spans_max * floats);
  const auto results = [&](std::int64_t task, std::int64_t span) { return first + (task * spans_max + span) * floats; };
  in_pieces(tasks * spans_max, [&](std::int64_t i, float* scores, float*, std::vector<AttendQuery>& queries) {
    const std::int64_t t = i / spans_max, s = i % spans_max;
    if (s < plan.group(t).spans) attend_span(plan, q, t, s, queries, scores, results(t, s));
  });
  in_pieces(tasks * heads, [&](std::int64_t i, float*, float*, std::vector<AttendQuery>&) {
    const std::int64_t t = i / heads, h = i % heads;
    for (std::int64_t s = 1; s < plan.group(t).spans; ++s) merge_span(plan, t, h, s, results(t, 0), results(t, s));
    write_head(plan, t, h, results(t, 0), out);
  });
}

}  // namespace outrider
