// Everything between the GEMMs at E4B's shapes, by instruction set: a name ends in that of a KernelTable, which one
// thread runs; work that is spread over threads, or that chooses its instruction set at start-up (OUTRIDER_ISA), has
// none. `per_element` is per element of a row, in attention per pair of a key and a query; `read` is the rate at which
// K/V are read.
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "common/base/random.h"
#include "common/compute/kernels/isa.h"
#include "common/compute/kernels/kernel_table.h"
#include "common/compute/kernels/ops.h"
#include "common/decoding/sampling/distribution.h"
#include "common/decoding/sampling/logprobs.h"

namespace outrider {
namespace {

// E4B (lab/shapes.cc).
constexpr std::int64_t kHidden = 2560, kIntermediate = 10240, kHeads = 8, kKvHeads = 2, kHeadDim = 256,
                       kGlobalHeadDim = 512, kWindow = 512, kVocabulary = 262'144;

std::vector<float> random_values(std::int64_t count, std::uint64_t seed, float largest = 1.73f) {
  CounterRng rng(seed);
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& v : values) v = static_cast<float>(rng.uniform() * 2 - 1) * largest;
  return values;
}

/// Returns values like real logits: most are far below the best.
std::vector<float> random_logits() {
  std::vector<float> logits = random_values(kVocabulary, 3, 1);
  for (float& v : logits) v = 12 * std::atanh(v * 0.999f);
  return logits;
}

using Body = std::function<void()>;

/// @param elements  per call @param bytes  of K/V read per call; 0: omits the column
void add(const std::string& name, std::int64_t elements, std::int64_t bytes, const Body& body) {
  const auto run = [=](benchmark::State& state) {
    for (auto _ : state) {
      body();
      benchmark::ClobberMemory();
    }
    const double calls = static_cast<double>(state.iterations());
    state.counters["per_element"] = benchmark::Counter(calls * static_cast<double>(elements),
                                                       benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
    if (bytes > 0)
      state.counters["read"] = benchmark::Counter(calls * static_cast<double>(bytes), benchmark::Counter::kIsRate);
  };
  benchmark::RegisterBenchmark(name.c_str(), run)->UseRealTime()->Unit(benchmark::kMicrosecond)->MinTime(0.05);
}

/// K and V of one layer.
struct Cache {
  Cache(std::int64_t rows, std::int64_t columns)
      : k(static_cast<std::size_t>(rows * kKvHeads * columns)), v(k.size()), positions(rows), head_dim(columns) {
    CounterRng rng(4);
    for (Bf16& x : k)
      x = to_bf16(static_cast<float>(rng.uniform() * 2 - 1) *
                  0.1f);  // like normed rows, so that no single key gets all the weight
    for (Bf16& x : v) x = to_bf16(static_cast<float>(rng.uniform() * 2 - 1));
  }
  KvView view() const {
    return {.dtype = DType::kBf16,
            .k = k.data(),
            .v = v.data(),
            .capacity = positions,
            .num_key_value_heads = kKvHeads,
            .head_dim = head_dim};
  }
  std::int64_t bytes() const { return static_cast<std::int64_t>((k.size() + v.size()) * sizeof(Bf16)); }

  std::vector<Bf16> k, v;
  std::int64_t positions, head_dim;
};

void add_row_kernels(Isa isa) {
  const KernelTable& table = kernel_table(isa);
  const auto name = [&](const char* kernel, std::int64_t n) {
    return fmt::format("{}/{}/{}", kernel, n, to_string(isa));
  };
  static const std::vector<float> a = random_values(kVocabulary, 1), b = random_values(kVocabulary, 2),
                                  logits = random_logits();
  static std::vector<float> y(static_cast<std::size_t>(kVocabulary));
  static std::vector<Bf16> halves(static_cast<std::size_t>(kVocabulary));
  static std::vector<std::int8_t> bytes(static_cast<std::size_t>(kVocabulary));
  static std::vector<std::int32_t> sums(static_cast<std::size_t>(kIntermediate), 12345);
  add(name("rms_norm", kHidden), kHidden, 0,
      [&table] { table.rms_norm(a.data(), b.data(), 1e-6f, kHidden, y.data()); });
  for (const std::int64_t head_dim : {kHeadDim, kGlobalHeadDim}) {
    const std::vector<float> frequencies(static_cast<std::size_t>(head_dim / 2), 0.5f);
    add(name("rope", head_dim), head_dim, 0, [&table, head_dim, angles = rope_angles(7, frequencies)] {
      table.rope(y.data(), angles.cos.data(), angles.sin.data(), head_dim / 2);
    });
  }
  add(name("gelu_mul", kIntermediate), kIntermediate, 0,
      [&table] { table.gelu_mul(a.data(), b.data(), kIntermediate, y.data()); });
  add(name("add", kHidden), kHidden, 0, [&table] { table.add(y.data(), b.data(), kHidden); });
  add(name("scale", kHidden), kHidden, 0, [&table] { table.scale(y.data(), 1, kHidden); });
  for (const std::int64_t n : {kHidden, kIntermediate}) {
    add(name("quantize", n), n, 0, [&table, n] { table.quantize(a.data(), n, bytes.data()); });
    add(name("rotate", n), n, 0, [&table, n] { table.rotate(y.data(), n); });
  }
  add(name("dequantize", kIntermediate), kIntermediate, 0,
      [&table] { table.dequantize(sums.data(), 0.01f, b.data(), kIntermediate, y.data()); });
  add(name("to_bf16", kIntermediate), kIntermediate, 0,
      [&table] { table.to_bf16(a.data(), kIntermediate, halves.data()); });
  add(name("argmax", kVocabulary), kVocabulary, 0,
      [&table] { benchmark::DoNotOptimize(table.argmax(logits.data(), kVocabulary)); });
  add(name("softcap", kVocabulary), kVocabulary, 0, [&table] { table.softcap(y.data(), 30, kVocabulary); });
  add(name("softmax_weights", kVocabulary), kVocabulary, 0,
      [&table] { table.softmax_weights(logits.data(), 30, 1, kVocabulary, y.data()); });
  // One query row, one K/V head's query heads after the other; at most a span of keys, as attend() cuts long rows.
  for (const std::int64_t count : {kWindow, std::int64_t{1024}}) {
    const auto cache = std::make_shared<Cache>(count, count == kWindow ? kHeadDim : kGlobalHeadDim);
    add(name("attend_bf16", count), count * kHeads * cache->head_dim, cache->bytes(), [&table, cache] {
      constexpr std::int64_t kGroup = kHeads / kKvHeads;
      static std::vector<float> scores(static_cast<std::size_t>(kGroup * 1024)),
          out(static_cast<std::size_t>(kGroup * kGlobalHeadDim)), largest(kGroup), sum(kGroup);
      for (std::int64_t head = 0; head < kKvHeads; ++head) {
        AttendQuery queries[kGroup];
        for (std::int64_t h = 0; h < kGroup; ++h) {
          queries[h] = {.q = a.data() + (head * kGroup + h) * cache->head_dim,
                        .begin = 0,
                        .end = cache->positions,
                        .scores = scores.data() + h * cache->positions,
                        .out = out.data() + h * cache->head_dim,
                        .largest = &largest[static_cast<std::size_t>(h)],
                        .sum = &sum[static_cast<std::size_t>(h)]};
        }
        table.attend_bf16({.queries = queries,
                           .query_count = kGroup,
                           .head_dim = cache->head_dim,
                           .k = cache->k.data() + head * cache->head_dim,
                           .v = cache->v.data() + head * cache->head_dim,
                           .row_stride = kKvHeads * cache->head_dim,
                           .capacity = cache->positions,
                           .first = 0,
                           .count = cache->positions});
      }
    });
  }
}

/// attend() over all threads: the last `rows` rows of a sequence of `context` tokens, in a full layer.
void add_attention(std::int64_t rows, std::int64_t context) {
  const auto cache = std::make_shared<Cache>(context, kGlobalHeadDim);
  const std::int64_t width = kHeads * kGlobalHeadDim;
  const auto q = std::make_shared<std::vector<float>>(random_values(rows * width, 5)),
             out = std::make_shared<std::vector<float>>(q->size());
  std::vector<AttendRow> sees;
  std::int64_t keys = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    sees.push_back({.kv = cache->view(), .first = 0, .count = context - rows + row + 1});
    keys += sees.back().count;
  }
  add(fmt::format("attend/rows {}/context {}", rows, context), keys * width, cache->bytes(), [=, held = cache] {
    attend({q->data(), {rows, width}}, sees, {out->data(), {rows, width}});
  });
}

void add_sampling() {
  static const std::vector<float> logits = random_logits();
  static SamplingScratch scratch;
  static Distribution distribution;
  const auto add_distribution = [](const char* name, const SamplingParams& params) {
    add(name, kVocabulary, 0, [params] { make_distribution(logits, params, scratch, &distribution); });
  };
  add_distribution("softmax of all", {.temperature = 1});
  add_distribution("softmax of top_k 64, top_p 0.95", {.temperature = 1, .top_k = 64, .top_p = 0.95f});
  add_distribution("softmax of top_p 0.95", {.temperature = 1, .top_p = 0.95f});
  add("draw from all", kVocabulary, 0, [] {
    static const Distribution all = [] {
      Distribution made;
      make_distribution(logits, {.temperature = 1}, scratch, &made);
      return made;
    }();
    benchmark::DoNotOptimize(draw(all, Noise(1, 2, Noise::Stream::kDraw)));
  });
  for (const std::int32_t count : {0, 20}) {
    add(fmt::format("log-sum-exp and {} logprobs", count), kVocabulary, 0,
        [count] { benchmark::DoNotOptimize(logprobs_of(logits, 30, 7, count, scratch)); });
  }
}

}  // namespace
}  // namespace outrider

int main(int argc, char** argv) {
  using outrider::Isa;
  for (const Isa isa : outrider::isas()) {
    if (outrider::has_isa(isa) && isa != Isa::kAmx && isa != Isa::kAvx2Vnni) outrider::add_row_kernels(isa);
  }
  for (const std::int64_t context : {512, 8192}) {
    for (const std::int64_t rows : {1, 5, 128}) outrider::add_attention(rows, context);
  }
  outrider::add_sampling();
  benchmark::Initialize(&argc, argv);
  benchmark::AddCustomContext("isa", to_string(outrider::active_isa()));
  benchmark::RunSpecifiedBenchmarks();
}
