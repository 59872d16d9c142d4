#include "launch/read_bandwidth.h"

#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <thread>

#include "common/base/time.h"
#include "common/tensor/tensor.h"

namespace outrider {

namespace {

double measure() {
  // Four times the largest last-level cache seen so far; a shared host's cache cannot hold it either.
  constexpr std::size_t kBytes = std::size_t{1} << 30;
  constexpr int kPasses = 5;
  const AlignedArray<std::uint64_t> block(kBytes / sizeof(std::uint64_t));
  const std::uint64_t* const data = block.data();
  double best = 0;
  std::uint64_t sink = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    const TimePoint start = now();
    std::uint64_t sum = 0;
#pragma omp parallel for schedule(static) reduction(+ : sum)
    for (std::int64_t line = 0; line < static_cast<std::int64_t>(kBytes / 64); ++line) {
      // One word of each cache line: the line is what the memory delivers. Fetched ahead as our kernels do; else
      // this would be slower than they are.
      __builtin_prefetch(data + line * 8 + 512);
      sum += data[line * 8];
    }
    sink += sum;
    best = std::max(best, static_cast<double>(kBytes) / to_seconds(now() - start) / 1e9);
  }
  // The sum is zero; saying so keeps the loop.
  return best + static_cast<double>(sink);
}

}  // namespace

double measure_read_bandwidth_gb_s(int threads) {
  // On a thread that ends, and its OpenMP workers with it: libgomp counts idle workers too, and once it
  // has more than cores, none of them spins any more.
  double result = 0;
  std::thread([&] {
    if (threads > 0) omp_set_num_threads(threads);
    result = measure();
  }).join();
  return result;
}

}  // namespace outrider
