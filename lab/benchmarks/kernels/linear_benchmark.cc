// Linear::forward of a few rows, at shapes of E4B. `weights` is the rate at which packed weights are
// read, to be compared with the machine's bandwidth (outrider bench pair --json prints it): matrices are
// taken in turn from a pool that no cache holds. And, as `assistant`, the matrices of a draft step that read a layer's
// normed row, as they are and of a lower rank, in two products each (docs/lab/drafter.md): of one assistant, so that
// caches hold what they hold while it drafts.
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

/// Packed random matrices of one type and shape, 512 MB of them; the last asked for is kept.
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

/// Of an assistant with three sliding layers and a full one.
struct AssistantShape {
  std::int64_t hidden, head_dim, heads, intermediate;
};

/// q, and gate and up as one, of four layers, one row. Its argument is the rank; 0: as they are.
void assistant_inputs(benchmark::State& state, WeightType type, AssistantShape shape) {
  const std::int64_t rank = state.range(0), h = shape.hidden;
  CounterRng rng(1);
  std::vector<std::vector<Linear>> products;  // each applied to the output of the one before
  std::int64_t widest = 0;
  for (int layer = 0; layer < 4; ++layer) {
    const std::int64_t head_dim = layer == 3 ? 2 * shape.head_dim : shape.head_dim;
    for (const std::int64_t out : {shape.heads * head_dim, 2 * shape.intermediate}) {
      std::vector<Linear>& chain = products.emplace_back();
      if (rank > 0) chain.push_back(random_matrix(type, h, rank, rng));
      chain.push_back(random_matrix(type, rank > 0 ? rank : h, out, rng));
      widest = std::max(widest, out);
    }
  }
  const auto row_size = static_cast<std::size_t>(padded_rows(1) * std::max(widest, h));
  AlignedArray<float> x(row_size), inner(row_size), y(row_size);
  for (float& v : x.span()) v = static_cast<float>(rng.uniform() * 2 - 1);
  for (auto _ : state) {
    for (const std::vector<Linear>& chain : products) {
      const float* from = x.data();
      for (const Linear& product : chain) {
        float* const to = &product == &chain.back() ? y.data() : inner.data();
        product.forward({from, {1, product.in_features()}}, {to, {1, product.out_features()}});
        from = to;
      }
    }
    benchmark::ClobberMemory();
  }
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
  // The assistants of nano, E4B and 26B-A4B.
  for (const outrider::AssistantShape& shape :
       {outrider::AssistantShape{192, 64, 4, 640}, {256, 256, 4, 2048}, {1024, 256, 16, 8192}}) {
    for (const WeightType type : {WeightType::kBf16, WeightType::kInt8}) {
      const std::string name = fmt::format("assistant/{}/{}/rank", to_string(type), shape.hidden);
      auto* const one = benchmark::RegisterBenchmark(name.c_str(), outrider::assistant_inputs, type, shape);
      for (const std::int64_t sixteenths : {0, 2, 4, 8, 12}) one->Arg(shape.hidden * sixteenths / 16);
      one->UseRealTime()->Unit(benchmark::kMicrosecond)->MinTime(0.1);
    }
  }
  benchmark::Initialize(&argc, argv);
  benchmark::AddCustomContext("isa", to_string(outrider::active_isa()));
  benchmark::RunSpecifiedBenchmarks();
}
