#include "common/compute/kernels/team_sizer.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "common/base/random.h"

namespace outrider {
namespace {

constexpr std::size_t kLayers = 42;

/// Seconds that a layer takes with so many threads.
using Machine = std::function<double(int threads, std::int64_t rows, CounterRng& rng)>;

/// Memory that `saturating` threads exhaust, arithmetic that all share, a barrier that costs by the thread.
double quiet(int threads, std::int64_t rows, int saturating) {
  const double bytes = 1e-3 * std::max(1.0 / threads, 1.0 / saturating) * 16;
  const double arithmetic = 2e-5 * static_cast<double>(rows) / threads * 16;
  return std::max(bytes, arithmetic) + 2e-7 * threads;
}

/// Each thread's core is somebody else's for so long with this chance, and the layer waits.
double stall(int threads, double chance, CounterRng& rng, double seconds = 3e-3) {
  bool waits = false;
  for (int i = 0; i < threads; ++i) waits |= rng.uniform() < chance;
  return waits ? seconds : 0;
}

/// Passes of one kind. @return seconds that `passes` of them take, after `before`
double run(TeamSizer& sizer, const Machine& machine, std::int64_t rows, int before, int passes, CounterRng& rng) {
  double seconds = 0;
  for (int pass = 0; pass < before + passes; ++pass) {
    for (std::size_t layer = 0; layer < kLayers; ++layer) {
      // Every sixth layer is a full one.
      const double took = machine(sizer.next(rows, layer), rows, rng) * (layer % 6 == 5 ? 1.5 : 1.0);
      sizer.took(std::chrono::nanoseconds(static_cast<std::int64_t>(took * 1e9)));
      if (pass >= before) seconds += took;
    }
  }
  return seconds;
}

double fixed(const Machine& machine, int threads, std::int64_t rows, int passes, CounterRng& rng) {
  double seconds = 0;
  for (int i = 0; i < passes * static_cast<int>(kLayers); ++i)
    seconds += machine(threads, rows, rng) * (i % 6 == 5 ? 1.5 : 1.0);
  return seconds;
}

struct Host {
  std::string name;
  int cores;
  Machine machine;
};

std::vector<Host> hosts() {
  return {
      {"2 quiet", 2, [](int threads, auto rows, auto&) { return quiet(threads, rows, 2); }},
      {"16 quiet", 16, [](int threads, auto rows, auto&) { return quiet(threads, rows, 10); }},
      {"16, memory that 4 exhaust", 16, [](int threads, auto rows, auto&) { return quiet(threads, rows, 4); }},
      {"64 quiet", 64, [](int threads, auto rows, auto&) { return quiet(threads, rows, 48); }},
      {"128, of which the last 96 are lost now and then", 128,
       [](int threads, auto rows, auto& rng) {
         return quiet(threads, rows, 16) + stall(std::max(threads - 32, 0), 0.02, rng);
       }},
      {"64, each lost now and then", 64,
       [](int threads, auto rows, auto& rng) { return quiet(threads, rows, 16) + stall(threads, 0.003, rng); }},
      {"2, one of which is lost half the time", 2,
       [](int threads, auto rows, auto& rng) {
         return quiet(threads, rows, 2) + (threads == 2 ? stall(1, 0.5, rng) : 0.0);
       }},
  };
}

// What a user loses by not knowing the best number, from the 50th pass on. Stalls are rare and long, so that some dozen
// layers, after which a number is chosen, tell two that are close from each other by chance alone.
TEST(TeamSizer, IsAsFastAsTheBestFixedNumber) {
  for (const Host& host : hosts()) {
    for (const std::int64_t rows : {1, 5, 256}) {
      for (std::uint64_t seed = 1; seed <= 3; ++seed) {
        CounterRng rng(seed);
        double best = 1e9;
        int best_threads = 0;
        for (int threads = 1; threads <= host.cores; threads = threads < 4 ? threads + 1 : threads * 5 / 4) {
          const double seconds = fixed(host.machine, threads, rows, 200, rng);
          if (seconds < best) best_threads = threads;
          best = std::min(best, seconds);
        }
        TeamSizer sizer(host.cores, kLayers);
        const double found = run(sizer, host.machine, rows, 50, 200, rng);
        EXPECT_GE(best / found, 0.9) << host.name << ", " << rows << " rows, seed " << seed << ": the best is "
                                     << best_threads << " threads, chosen are " << sizer.chosen(rows);
      }
    }
  }
}

// The first answer must not take a minute because half of the host's cores are busy.
TEST(TeamSizer, TheFirstPassesAreNoDisaster) {
  CounterRng rng(1);
  const Host host = hosts()[4];
  TeamSizer sizer(host.cores, kLayers);
  const double found = run(sizer, host.machine, 1, 0, 20, rng);
  EXPECT_LE(found, 1.5 * fixed(host.machine, 16, 1, 20, rng));
}

TEST(TeamSizer, PromptsAndStepsHaveANumberEach) {
  CounterRng rng(1);
  TeamSizer sizer(64, kLayers);
  const Machine machine = [](int threads, std::int64_t rows, CounterRng&) {
    return quiet(threads, rows, 8) + 2e-5 * threads;
  };
  for (int i = 0; i < 20; ++i) {
    run(sizer, machine, 512, 0, 2, rng);
    run(sizer, machine, 1, 0, 20, rng);
  }
  EXPECT_GE(sizer.chosen(512), 48);
  EXPECT_LE(sizer.chosen(1), 12);
  EXPECT_GE(sizer.chosen(1), 8);
}

// After hours of the same, a neighbour comes, and goes.
TEST(TeamSizer, FollowsAMachineThatChanges) {
  CounterRng rng(1);
  bool is_busy = false;
  const Machine machine = [&](int threads, std::int64_t rows, CounterRng& random) {
    return quiet(threads, rows, 16) + (is_busy ? stall(std::max(threads - 4, 0), 0.05, random, 0.01) : 0.0);
  };
  TeamSizer sizer(16, kLayers);
  run(sizer, machine, 1, 0, 5000, rng);
  EXPECT_EQ(sizer.chosen(1), 16);
  is_busy = true;
  run(sizer, machine, 1, 0, 120, rng);
  EXPECT_LE(sizer.chosen(1), 8);
  run(sizer, machine, 1, 0, 5000, rng);
  is_busy = false;
  run(sizer, machine, 1, 0, 200, rng);
  EXPECT_EQ(sizer.chosen(1), 16);
}

// In the long run nearly nothing is tried.
TEST(TeamSizer, TriesLittleBesideAChoiceThatHolds) {
  CounterRng rng(1);
  const Machine machine = [](int threads, std::int64_t rows, CounterRng&) { return quiet(threads, rows, 16); };
  TeamSizer sizer(16, kLayers);
  run(sizer, machine, 1, 0, 2000, rng);
  int tried = 0;
  for (int pass = 0; pass < 1000; ++pass) {
    for (std::size_t layer = 0; layer < kLayers; ++layer) {
      const int threads = sizer.next(1, layer);
      tried += threads != sizer.chosen(1) ? 1 : 0;
      sizer.took(std::chrono::nanoseconds(static_cast<std::int64_t>(machine(threads, 1, rng) * 1e9)));
    }
  }
  EXPECT_GT(tried, 0);
  EXPECT_LE(tried, 1000 * static_cast<int>(kLayers) / 200);
}

// Beside many neighbours layers scatter so much that no number is certain, and a thread that is woken for a trial, or
// after one, is late.
TEST(TeamSizer, ASearchThatDecidesNothingCostsLessAndLess) {
  CounterRng rng(1);
  int before = 16;
  const Machine machine = [&](int threads, std::int64_t rows, CounterRng& random) {
    const double woken = std::exchange(before, threads) == threads ? 1.0 : 1.5;
    return quiet(threads, rows, 8) * woken * std::exp(3 * (random.uniform() - 0.5));
  };
  const double best = fixed(machine, 12, 1, 2000, rng);
  TeamSizer sizer(16, kLayers);
  const double found = run(sizer, machine, 1, 100, 2000, rng);
  EXPECT_GE(best / found, 0.95);
}

TEST(TeamSizer, OneCoreIsOneThread) {
  TeamSizer sizer(1, 1);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(sizer.next(1, 0), 1);
    sizer.took(std::chrono::microseconds(100 + i % 7));
  }
}

}  // namespace
}  // namespace outrider
