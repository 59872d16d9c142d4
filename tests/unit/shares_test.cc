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

}  // namespace
}  // namespace outrider
