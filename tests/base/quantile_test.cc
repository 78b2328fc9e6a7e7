#include "base/quantile.h"

#include <gtest/gtest.h>

namespace allot {
namespace {

TEST(Quantile, IsLinearBetweenTheTwoNearestValues) {
  const std::vector<double> values{5, 1, 4, 2, 3};
  EXPECT_EQ(quantile(values, 0), 1);
  EXPECT_EQ(quantile(values, 0.5), 3);
  EXPECT_EQ(quantile(values, 1), 5);
  EXPECT_DOUBLE_EQ(quantile(values, 0.05), 1.2);
  EXPECT_DOUBLE_EQ(quantile(values, 0.9), 4.6);
  EXPECT_DOUBLE_EQ(quantile({4, 1}, 0.5), 2.5);
}

TEST(Quantile, OfEqualValuesIsThatValue) {
  EXPECT_EQ(quantile({7}, 0.05), 7);
  EXPECT_EQ(quantile({7, 7, 7}, 0.7), 7);
}

TEST(Quantile, OfNoValuesIsNoNumber) {
  EXPECT_TRUE(std::isnan(quantile({}, 0.5)));
}

}  // namespace
}  // namespace allot
