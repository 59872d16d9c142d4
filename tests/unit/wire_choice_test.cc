#include "coordinator-node/wire_choice.h"

#include <cmath>

#include <gtest/gtest.h>

#include "common/base/random.h"

namespace outrider {
namespace {

/// E4B over a link: each round keeps up to four drafts, and what wakes up late is waited for.
struct Text {
  CounterRng rng;
  double pass_s, mean_noise_s;
  WireChoice choice = {};
  int changes = 0;

  void rounds(int count, double mbit) {
    for (int i = 0; i < count; ++i) {
      const double rows = 1 + static_cast<double>(rng.below(5));
      const double share = choice.form() == WireForm::kExact ? 1 : 34.0 / 64;
      const double bytes = 400 + (5120 + 6144 * rows) * share;
      const double wire_s = 2e-3 + bytes * 8e-6 / mbit - mean_noise_s * std::log(1 - rng.uniform());
      changes += choice.observe(bytes, wire_s, pass_s + wire_s);
    }
  }
};

TEST(WireChoice, FollowsTheTimeThatBytesTake) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    Text text{.rng = CounterRng(seed), .pass_s = 0.1, .mean_noise_s = 0.5e-3};
    text.rounds(60, 5);  // 24 KB take 38 ms of 140
    EXPECT_EQ(text.choice.form(), WireForm::kInt8) << seed;
    text.rounds(2000, 5);
    EXPECT_EQ(text.choice.form(), WireForm::kInt8) << seed;
    EXPECT_EQ(text.changes, 1) << seed;
    text.rounds(600, 1000);  // 0.2 ms
    EXPECT_EQ(text.choice.form(), WireForm::kExact) << seed;
    EXPECT_EQ(text.changes, 2) << seed;
  }
}

// With three deviations a slope of noise alone counts once in 740 windows of 50 rounds or so; that it is also worth 5 %
// of a round and a millisecond is what the noise of a loaded machine does not bring about.
TEST(WireChoice, NoiseIsNoThinLink) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    for (const double pass_s : {2e-3, 0.1}) {
      Text text{.rng = CounterRng(seed), .pass_s = pass_s, .mean_noise_s = 1e-3};
      text.rounds(5000, 1000);
      EXPECT_EQ(text.changes, 0) << seed << ", passes of " << pass_s;
    }
  }
}

TEST(WireChoice, KnowsNothingWhereAllRoundsAreAlike) {
  WireChoice choice;
  for (int i = 0; i < 1000; ++i) EXPECT_FALSE(choice.observe(20'000, 0.2, 0.3));
  EXPECT_EQ(choice.form(), WireForm::kExact);
}

}  // namespace
}  // namespace outrider
