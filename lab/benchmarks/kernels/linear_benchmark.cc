// Linear::forward of a few rows, at shapes of E4B. `weights` is the rate at which packed weights are read, to be
// compared with the machine's bandwidth (outrider bench pair --json prints it): matrices are taken in turn from a pool
// larger than any cache.
#include <algorithm>
#include <vector>

#include <benchmark/benchmark.h>

#include "common/base/random.h"
#include "common/compute/kernels/isa.h"
#include "common/compute/kernels/linear.h"

namespace outrider {
namespace {

Linear random_matrix(WeightType type, std::int64_t in, std::int64_t out, CounterRng& rng) {
  std::vector<float> values(static_cast<std::size_t>(in * out));
  for (float& v : values) v = static_cast<float>(rng.uniform() * 2 - 1);
  const WeightRows rows{DType::kF32, reinterpret_cast<const std::byte*>(values.data()), out};
  return Linear::pack(type, in, {&rows, 1});
}

/// Returns packed random matrices of one type and shape, 512 MB in total; keeps the last pool.
const std::vector<Linear>& pool(WeightType type, std::int64_t in, std::int64_t out) {
  static std::vector<Linear> matrices;
  static WeightType pool_type;
  if (!matrices.empty() && pool_type == type && matrices[0].in_features() == in && matrices[0].out_features() == out)
    return matrices;
  matrices.clear();
  pool_type = type;
  CounterRng rng(1);
  matrices.push_back(random_matrix(type, in, out, rng));
  // The others are copies of its bytes: packing takes longer than measuring.
  const LinearImage image = matrices[0].image();
  for (std::size_t bytes = 0; bytes < 512u << 20; bytes += image.weights.size()) {
    const auto copy = std::make_shared<AlignedArray<std::byte>>(image.weights.size());
    std::copy(image.weights.begin(), image.weights.end(), copy->data());
    matrices.push_back(Linear::map(type, in, out, {image.layout, copy->span(), image.scales}, copy).value());
  }
  return matrices;
}

void forward(benchmark::State& state, WeightType type, std::int64_t in, std::int64_t out) {
  const std::vector<Linear>& matrices = pool(type, in, out);
  const std::int64_t rows = state.range(0);
  AlignedArray<float> x(static_cast<std::size_t>(padded_rows(rows) * in)),
      y(static_cast<std::size_t>(padded_rows(rows) * out));
  CounterRng rng(2);
  for (float& v : x.span()) v = static_cast<float>(rng.uniform() * 2 - 1);
  std::size_t next = 0;
  for (auto _ : state) {
    matrices[next++ % matrices.size()].forward({x.data(), {rows, in}}, {y.data(), {rows, out}});
    benchmark::ClobberMemory();
  }
  state.counters["weights"] =
      benchmark::Counter(static_cast<double>(state.iterations()) * static_cast<double>(matrices[0].weight_bytes()),
                         benchmark::Counter::kIsRate);
  state.SetLabel(matrices[0].implementation());
}

}  // namespace
}  // namespace outrider

int main(int argc, char** argv) {
  using outrider::WeightType;
  for (const auto& [in, out] : {std::pair<std::int64_t, std::int64_t>{2560, 10240}, {10240, 2560}, {2560, 2048}}) {
    for (const WeightType type : {WeightType::kBf16, WeightType::kInt8, WeightType::kInt4}) {
      auto* const one = benchmark::RegisterBenchmark(fmt::format("{}/{}x{}/rows", to_string(type), in, out).c_str(),
                                                     outrider::forward, type, in, out);
      for (const std::int64_t rows : {1, 2, 4, 5, 8, 9, 16, 64}) one->Arg(rows);
      one->UseRealTime()->Unit(benchmark::kMicrosecond)->MinTime(0.1);
    }
  }
  benchmark::Initialize(&argc, argv);
  benchmark::AddCustomContext("isa", to_string(outrider::active_isa()));
  benchmark::RunSpecifiedBenchmarks();
}
