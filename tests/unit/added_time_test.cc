#include "common/os/added_time.h"

#include <vector>

#include <gtest/gtest.h>

namespace outrider {
namespace {

TEST(AddedTime, IsLinearBetweenPowersOfTwoAndBeyondTheLast) {
  const std::vector<double> us = {100, 110, 150, 350};  // of 1, 2, 4, 8 rows
  const auto us_of = [](const std::vector<double>& table, std::int64_t rows) {
    return to_seconds(added_time(table, rows)) * 1e6;
  };
  constexpr double kNanosecond = 1.001e-3;  // a Duration is whole ones; the rest is rounding of the double
  EXPECT_EQ(us_of({}, 3), 0);
  EXPECT_NEAR(us_of({70}, 40), 70, kNanosecond);
  EXPECT_NEAR(us_of(us, 1), 100, kNanosecond);
  EXPECT_NEAR(us_of(us, 2), 110, kNanosecond);
  EXPECT_NEAR(us_of(us, 3), 130, kNanosecond);
  EXPECT_NEAR(us_of(us, 8), 350, kNanosecond);
  EXPECT_NEAR(us_of(us, 10), 450, kNanosecond);
}

}  // namespace
}  // namespace outrider
