#include "aggregator/log_limiter.h"

#include <gmock/gmock.h>

namespace allot::aggregator {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

TEST(LogLimiter, WritesAFewLinesOfAKindInAPeriodAndCountsTheRest) {
  LogLimiter limiter;
  Timestamp now{Duration{1'700'000'000'000}};
  for (int line = 0; line < LogLimiter::kLines; ++line) EXPECT_EQ(limiter.admit(LogKind::kFailure, now), 0);
  for (int line = 0; line < 5; ++line) EXPECT_EQ(limiter.admit(LogKind::kFailure, now), std::nullopt);
  EXPECT_EQ(limiter.admit(LogKind::kGivenUp, now), 0) << "each kind has lines of its own";
  now += LogLimiter::kPeriod - Duration{1};
  EXPECT_EQ(limiter.admit(LogKind::kFailure, now), std::nullopt);
  EXPECT_THAT(limiter.left_out(now), IsEmpty()) << "the period goes on";
  now += Duration{1};
  EXPECT_EQ(limiter.admit(LogKind::kFailure, now), 6) << "said with the first line of the next period";
  EXPECT_EQ(limiter.admit(LogKind::kFailure, now), 0);
}

TEST(LogLimiter, WhatWasLeftOutIsToldOnceThoughNoFurtherLineComes) {
  LogLimiter limiter;
  Timestamp now{Duration{1'700'000'000'000}};
  for (int line = 0; line < LogLimiter::kLines + 7; ++line) (void)limiter.admit(LogKind::kUnreadable, now);
  now += LogLimiter::kPeriod;
  EXPECT_THAT(limiter.left_out(now), ElementsAre(Pair(LogKind::kUnreadable, 7)));
  EXPECT_THAT(limiter.left_out(now), IsEmpty());
}

}  // namespace
}  // namespace allot::aggregator
