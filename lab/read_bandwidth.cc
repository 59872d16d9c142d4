#include "lab/read_bandwidth.h"

#include <algorithm>
#include <thread>

#include "common/base/time.h"

namespace outrider {

ReadBandwidth::ReadBandwidth() : block_((std::size_t{1} << 30) / sizeof(std::uint64_t)) {}

double ReadBandwidth::pass_gb_s() const {
  const std::uint64_t* const data = block_.data();
  const auto lines = static_cast<std::int64_t>(block_.size() / 8);
  const TimePoint start = now();
  std::uint64_t sum = 0;
#pragma omp parallel for schedule(static) reduction(+ : sum)
  for (std::int64_t line = 0; line < lines; ++line) {
    // One word of each cache line: the line is what the memory delivers. Fetched ahead as our kernels do; else
    // this would be slower than they are.
    __builtin_prefetch(data + line * 8 + 512);
    sum += data[line * 8];
  }
  // The sum is zero; saying so keeps the loop.
  return static_cast<double>(block_.size() * sizeof(std::uint64_t)) / to_seconds(now() - start) / 1e9 +
         static_cast<double>(sum);
}

double measure_read_bandwidth_gb_s() {
  // On a thread that ends, and its OpenMP workers with it: libgomp counts idle workers too, and once it
  // has more than cores, none of them spins any more.
  double best = 0;
  std::thread([&] {
    const ReadBandwidth bandwidth;
    for (int pass = 0; pass < 5; ++pass) best = std::max(best, bandwidth.pass_gb_s());
  }).join();
  return best;
}

}  // namespace outrider
