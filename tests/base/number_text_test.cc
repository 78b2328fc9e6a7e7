#include "base/number_text.h"

#include <gtest/gtest.h>

namespace allot {
namespace {

TEST(NumberText, RatiosArePercentWithOneDecimal) {
  EXPECT_EQ(percent(0.98437), "98.4%");
  EXPECT_EQ(percent(1), "100.0%");
  EXPECT_EQ(percent(0.426, 0), "43%");
  EXPECT_EQ(percent_range(0.961, 0.994), "96.1 to 99.4%");
  EXPECT_EQ(percent_with_range(0.984, 0.961, 0.994), "98.4% (96.1 to 99.4)");
}

TEST(NumberText, DifferencesArePointsWithTheirSign) {
  EXPECT_EQ(points(0.0312), "+3.1 points");
  EXPECT_EQ(points(-0.004), "-0.4 points");
  EXPECT_EQ(points_range(-0.01, 0.052), "-1.0 to +5.2");
  EXPECT_EQ(points_with_range(0.031, 0.01, 0.052), "+3.1 points (+1.0 to +5.2)");
}

TEST(NumberText, SmallPValuesKeepTheirSizeAndNoneIsZero) {
  EXPECT_EQ(p_value_text(1), "= 1.000");
  EXPECT_EQ(p_value_text(0.0321), "= 0.032");
  EXPECT_EQ(p_value_text(3.14e-24), "= 3.1e-24");
  EXPECT_EQ(p_value_text(0), "< 1e-300");
}

TEST(NumberText, DurationsAreShownInTheirTwoLargestUnits) {
  EXPECT_EQ(duration_text(0), "0s");
  EXPECT_EQ(duration_text(59.4), "59s");
  EXPECT_EQ(duration_text(59.6), "1m 00s");
  EXPECT_EQ(duration_text(185), "3m 05s");
  EXPECT_EQ(duration_text(7620), "2h 07m");
  EXPECT_EQ(duration_text(-1), "?");
}

}  // namespace
}  // namespace allot
