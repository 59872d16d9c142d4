#include "common/model/gemma4/lent_backbone.h"

#include <atomic>
#include <optional>
#include <thread>

#include <gtest/gtest.h>

namespace outrider {
namespace {

TEST(LentBackbone, IsTheVerifiersUntilItGivesIt) {
  LentBackbone lent;
  const auto may_begin = [&] { return LentBackbone::Pass(lent).begun(); };
  EXPECT_FALSE(may_begin());
  lent.give();
  EXPECT_TRUE(may_begin());
  EXPECT_TRUE(may_begin());
  lent.take();
  EXPECT_FALSE(may_begin());
  lent.take();  // at each of its passes
  lent.give();
  EXPECT_TRUE(may_begin());
}

// The one who waits is next, however soon the other begins again.
TEST(LentBackbone, ComputesForOneAtATime) {
  LentBackbone lent;
  lent.give();
  int passes = 0;  // written by whoever computes
  std::atomic<bool> over = false, drafted = false;
  std::thread drafter([&] {
    while (!over) {
      const LentBackbone::Pass pass(lent);
      if (!pass.begun()) continue;
      ++passes;
      drafted = true;
    }
  });
  for (int i = 0; i < 1000; ++i) {
    lent.take();
    const int before = passes;
    std::this_thread::yield();
    EXPECT_EQ(passes, before);
    ++passes;
    drafted = false;
    lent.give();
    while (!drafted) std::this_thread::yield();
  }
  over = true;
  drafter.join();
  EXPECT_GE(passes, 2000);
}

// So that a verifier's heartbeats are in time, however long the drafter's pass is.
TEST(LentBackbone, LetsTheVerifiersLoopGoOnWhileItWaits) {
  LentBackbone lent;
  lent.give();
  std::optional<LentBackbone::Pass> pass(std::in_place, lent);
  int times = 0;
  lent.take([&] {
    if (++times == 3) pass.reset();
  });
  EXPECT_EQ(times, 3);
}

TEST(LentBackbone, IsAwaitedUntilItIsLoadedOrNobodyWantsIt) {
  LentBackbone lent;
  std::stop_source stop;
  std::thread asker([&] { EXPECT_FALSE(lent.wait(stop.get_token())); });
  stop.request_stop();
  asker.join();
}

}  // namespace
}  // namespace outrider
