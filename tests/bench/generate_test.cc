#include "bench/generate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace allot::bench {
namespace {

TEST(Quantile, IsTheSmallestValueThatTheShareDoesNotExceed) {
  const std::vector<double> values{5, 1, 4, 2, 3};
  EXPECT_EQ(quantile(values, 0.05), 1);
  EXPECT_EQ(quantile(values, 0.2), 1);
  EXPECT_EQ(quantile(values, 0.21), 2);
  EXPECT_EQ(quantile(values, 0.5), 3);
  EXPECT_EQ(quantile(values, 0.95), 5);
  EXPECT_EQ(quantile(values, 1), 5);
  EXPECT_EQ(quantile({7}, 0.05), 7);
}

}  // namespace
}  // namespace allot::bench
