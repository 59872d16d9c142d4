// Drafters by what their drafts bring: the rule of coordinator-node/reputation.h.
#include "coordinator-node/reputation.h"

#include <gtest/gtest.h>

#include "coordinator-node/fleet.h"

namespace outrider {
namespace {

using std::chrono::seconds;

constexpr TimePoint kStart{seconds(100)};

/// Rounds until it is paused, at most `most`.
int rounds_until_paused(Reputation& reputation, bool held, double best_other, TimePoint now, int most = 1000) {
  for (int round = 1; round <= most; ++round)
    if (reputation.count(held, best_other, now)) return round;
  return 0;
}

TEST(Reputation, PausesWhoBringsLessThanAQuarterOfWhatOthersDo) {
  Reputation liar, alone, fair;
  EXPECT_GE(rounds_until_paused(liar, false, 0.8, kStart), Reputation::kTrial);
  EXPECT_TRUE(liar.paused());
  EXPECT_EQ(rounds_until_paused(alone, false, 0, kStart), 0) << "there is nobody better";
  for (int round = 0; round < 1000; ++round) EXPECT_FALSE(fair.count(round % 4 == 0, 0.8, kStart)) << round;
  EXPECT_NEAR(fair.yield(), 0.25, 0.05);
}

TEST(Reputation, TriesAgainAfterAPauseThatGrowsAndForgets) {
  Reputation reputation;
  TimePoint now = kStart;
  for (const int pause : {8, 16, 32, 64, 128, 256, 512, 512}) {
    ASSERT_GE(rounds_until_paused(reputation, false, 0.8, now), Reputation::kTrial);
    EXPECT_EQ(reputation.pause(), seconds(pause));
    reputation.on_time(now + seconds(pause) - Duration(1));
    EXPECT_TRUE(reputation.paused());
    now += seconds(pause);
    reputation.on_time(now);
    EXPECT_FALSE(reputation.paused());
    EXPECT_FALSE(reputation.is_known()) << "on trial";
  }
  // Each trial that goes well halves the next one.
  EXPECT_EQ(rounds_until_paused(reputation, true, 0.8, now, 2 * Reputation::kTrial), 0);
  EXPECT_GT(rounds_until_paused(reputation, false, 0.8, now), 0);
  EXPECT_EQ(reputation.pause(), seconds(256));
}

TEST(Reputation, GivesTheBetterOneMoreTexts) {
  Reputation good, bad;
  for (int round = 0; round < 200; ++round) good.count(true, 0, kStart), bad.count(round % 2 == 0, 0, kStart);
  EXPECT_LT(good.burden(1), bad.burden(1));
  EXPECT_LT(good.burden(1), bad.burden(0) * 1.1) << "two of the good one's are as one of the other's";
  EXPECT_GT(good.burden(3), bad.burden(0));
}

class FleetStanding : public testing::Test {
 protected:
  void join(const PeerId& peer, const std::string& name) {
    Hello hello;
    hello.role = Role::kDrafter;
    hello.name = name;
    fleet_.join(peer, hello, kStart);
  }
  void rounds(const PeerId& peer, bool held, int count) {
    for (int i = 0; i < count; ++i) {
      if (const auto why = fleet_.count_round(peer, held, kStart)) reported_ = *why;
    }
  }
  Fleet fleet_{1};
  std::string reported_;
};

TEST_F(FleetStanding, OfAKeyOutlivesItsConnections) {
  join("a", "honest/x");
  join("b", "liar/1");
  rounds("a", true, 100);
  rounds("b", false, 100);
  EXPECT_EQ(reported_,
            "drafter liar/1: a first draft holds in 7 % of its rounds, in 98 % of another's; no sequences for 8 s");
  EXPECT_EQ(fleet_.usable_drafter("b"), nullptr);
  EXPECT_EQ(fleet_.choose_drafter(), "a");
  fleet_.remove("b");
  join("c", "liar/2");
  EXPECT_EQ(fleet_.usable_drafter("c"), nullptr);
  join("d", "liar/3");
  EXPECT_EQ(fleet_.usable_drafter("d"), nullptr) << "another connection is no way out of the pause";
  fleet_.remove("c");
  EXPECT_EQ(fleet_.usable_drafter("d"), nullptr);
  join("e", "other/1");
  EXPECT_NE(fleet_.usable_drafter("e"), nullptr) << "under another key";
  fleet_.at("d").on_message(kStart + seconds(8));
  EXPECT_NE(fleet_.usable_drafter("d"), nullptr);
}

TEST_F(FleetStanding, DoesNotPauseTheOnlyDrafterThatJoinsAgain) {
  join("a", "honest/x");
  join("b", "liar/1");
  rounds("a", true, 100);
  rounds("b", false, 100);
  EXPECT_EQ(fleet_.usable_drafter("b"), nullptr);
  fleet_.remove("b");
  fleet_.remove("a");
  join("b", "liar/1");
  EXPECT_NE(fleet_.usable_drafter("b"), nullptr);
}

TEST_F(FleetStanding, OfABadDrafterHasRoomBesideThoseOfManyBetterOnes) {
  join("a", "honest/x");
  rounds("a", true, 100);
  for (int i = 0; i < 3000; ++i) {
    join("b", "guest" + std::to_string(i));
    rounds("b", i % 2 == 0, 1);
    fleet_.remove("b");
  }
  join("b", "liar/1");
  rounds("b", false, 100);
  fleet_.remove("b");
  join("c", "liar/2");
  EXPECT_EQ(fleet_.usable_drafter("c"), nullptr);
}

TEST_F(FleetStanding, IsNobodysWhoIsNotThere) {
  EXPECT_EQ(fleet_.count_round("", true, kStart), std::nullopt);
  EXPECT_EQ(fleet_.count_round("x", false, kStart), std::nullopt);
}

}  // namespace
}  // namespace outrider
