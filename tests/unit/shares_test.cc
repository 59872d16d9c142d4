#include "common/base/shares.h"

#include <string>

#include <gtest/gtest.h>

namespace outrider {
namespace {

TEST(Shares, OneAloneTakesAboutHalfAndAStrangerFindsRoomWhateverOthersDo) {
  for (const int total : {1, 2, 7, 512, 1024}) {
    Shares shares(total);
    int greedy = 0;
    while (shares.take("greedy", 1)) ++greedy;
    EXPECT_EQ(greedy, (total + 1) / 2);
    if (total < 4) continue;
    EXPECT_TRUE(shares.take("stranger", 1)) << total;
    while (shares.take("greedy too", 1)) {
    }
    EXPECT_TRUE(total < 64 || shares.take("another stranger", 1)) << total;
  }
}

TEST(Shares, WhatIsGivenBackIsThereForOthers) {
  Shares shares(100);
  EXPECT_TRUE(shares.take("a", 50));
  EXPECT_FALSE(shares.take("a", 10)) << "it holds as much as is free";
  EXPECT_TRUE(shares.take("b", 50)) << "nobody keeps places empty";
  EXPECT_FALSE(shares.take("c", 1));
  shares.give_back("a", 50);
  EXPECT_EQ(shares.used(), 50);
  EXPECT_TRUE(shares.take("c", 50));
}

// A body is counted as what it may be, then as what it is.
TEST(Shares, WhatSomebodyHoldsBecomesMoreAsIfHeAskedAnew) {
  Shares shares(100);
  EXPECT_TRUE(shares.take("a", 30));
  EXPECT_TRUE(shares.change("a", 30, 50)) << "one alone has half";
  EXPECT_TRUE(shares.take("b", 20));
  EXPECT_FALSE(shares.change("b", 20, 60)) << "there is not so much";
  EXPECT_EQ(shares.used(), 70) << "he has what he had";
  EXPECT_TRUE(shares.change("b", 20, 50));
  EXPECT_TRUE(shares.change("a", 50, 10)) << "less is always given";
  EXPECT_TRUE(shares.change("a", 10, 0));
  EXPECT_TRUE(shares.change("b", 50, 0));
  EXPECT_EQ(shares.used(), 0);
  EXPECT_TRUE(shares.change("c", 0, 40));
}

}  // namespace
}  // namespace outrider
