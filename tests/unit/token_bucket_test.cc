#include "common/base/token_bucket.h"

#include <gtest/gtest.h>

namespace outrider {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

int passed(TokenBucket& bucket, TimePoint begin, Duration time, Duration step) {
  int count = 0;
  for (TimePoint now = begin; now < begin + time; now += step) count += bucket.pass(now);
  return count;
}

TEST(TokenBucket, LetsABurstPassAndThenOneInEachInterval) {
  constexpr int kBurst = 50;
  TokenBucket bucket(milliseconds(10), kBurst);
  const TimePoint begin(seconds(1000));
  EXPECT_EQ(passed(bucket, begin, milliseconds(1), std::chrono::microseconds(1)), kBurst);
  EXPECT_EQ(passed(bucket, begin + milliseconds(1), seconds(10), std::chrono::microseconds(100)), 1000);
  // A pause of half a burst gives half a burst, and a longer one no more than a burst.
  EXPECT_EQ(passed(bucket, begin + milliseconds(10'250), milliseconds(1), std::chrono::microseconds(1)), kBurst / 2);
  EXPECT_EQ(passed(bucket, begin + seconds(1000), milliseconds(1), std::chrono::microseconds(1)), kBurst);
}

TEST(TokenBucket, NeverHoldsBackWhoComesMoreSeldomThanTheInterval) {
  TokenBucket bucket(milliseconds(10), 1);
  EXPECT_EQ(passed(bucket, TimePoint(seconds(1)), seconds(10), milliseconds(10)), 1000);
}

}  // namespace
}  // namespace outrider
