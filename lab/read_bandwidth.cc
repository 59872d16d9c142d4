#include "lab/read_bandwidth.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "common/base/time.h"
#include "common/compute/kernels/team.h"

namespace outrider {
namespace {

constexpr std::int64_t kLinesPerPiece = 1 << 14;  // 1 MiB

}  // namespace

ReadBandwidth::ReadBandwidth() : block_((std::size_t{1} << 30) / sizeof(std::uint64_t)) {}

double ReadBandwidth::pass_gb_s() const {
  const std::uint64_t* const data = block_.data();
  const auto lines = static_cast<std::int64_t>(block_.size() / 8);
  const TimePoint start = now();
  std::atomic<std::uint64_t> sum = 0;
  team_run(lines, kLinesPerPiece, [&](std::int64_t begin, std::int64_t end) {
    std::uint64_t piece_sum = 0;
    for (std::int64_t line = begin; line < end; ++line) {
      // One word of each cache line, since the memory delivers lines. Prefetched as in our kernels; otherwise this
      // would be slower than they are.
      __builtin_prefetch(data + line * 8 + 512);
      piece_sum += data[line * 8];
    }
    sum += piece_sum;
  });
  // The sum is zero; using it keeps the loop.
  return static_cast<double>(block_.size() * sizeof(std::uint64_t)) / to_seconds(now() - start) / 1e9 +
         static_cast<double>(sum.load());
}

double measure_read_bandwidth_gb_s() {
  // Runs on a thread that ends, with its workers.
  double best = 0;
  std::thread([&] {
    const ReadBandwidth bandwidth;
    for (int pass = 0; pass < 5; ++pass) best = std::max(best, bandwidth.pass_gb_s());
  }).join();
  return best;
}

}  // namespace outrider
