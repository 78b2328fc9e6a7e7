#include "aggregator/rate_limiter.h"

#include <gtest/gtest.h>

#include <string>

#include "base/clock.h"
#include "base/error.h"

namespace allot::aggregator {
namespace {

using namespace std::chrono_literals;

TEST(RateLimiter, ABurstPassesAndWhatFollowsIsToldWhenToComeAgain) {
  ManualClock clock;
  RateLimiter limiter({.per_second = 10, .burst = 3});
  for (int i = 0; i < 3; ++i) EXPECT_EQ(limiter.excess("a", clock.now()), std::nullopt);
  EXPECT_EQ(limiter.excess("a", clock.now()), 100ms);
  clock.advance(60ms);
  EXPECT_EQ(limiter.excess("a", clock.now()), 40ms);
  clock.advance(40ms);
  EXPECT_EQ(limiter.excess("a", clock.now()), std::nullopt);
  EXPECT_EQ(limiter.excess("a", clock.now()), 100ms);
}

TEST(RateLimiter, ASenderDoesNotUseUpTheRateOfAnother) {
  ManualClock clock;
  RateLimiter limiter({.per_second = 1, .burst = 1});
  EXPECT_EQ(limiter.excess("a", clock.now()), std::nullopt);
  EXPECT_NE(limiter.excess("a", clock.now()), std::nullopt);
  EXPECT_EQ(limiter.excess("b", clock.now()), std::nullopt);
}

TEST(RateLimiter, QuietTimeFillsTheBucketAndNoMore) {
  ManualClock clock;
  RateLimiter limiter({.per_second = 10, .burst = 2});
  clock.advance(1h);
  EXPECT_EQ(limiter.excess("a", clock.now()), std::nullopt);
  clock.advance(1h);
  for (int i = 0; i < 2; ++i) EXPECT_EQ(limiter.excess("a", clock.now()), std::nullopt);
  EXPECT_NE(limiter.excess("a", clock.now()), std::nullopt);
}

TEST(RateLimiter, AClockThatGoesBackLetsNobodyThroughAndCostsNobodyTime) {
  ManualClock clock(Timestamp{1h});
  RateLimiter limiter({.per_second = 10, .burst = 1});
  EXPECT_EQ(limiter.excess("a", clock.now()), std::nullopt);
  EXPECT_EQ(limiter.excess("a", Timestamp{}), 100ms);
  EXPECT_EQ(limiter.excess("a", clock.now()), 100ms);
}

TEST(RateLimiter, MemoryIsBoundedAndQuietSendersMakeRoom) {
  ManualClock clock;
  RateLimiter limiter({.per_second = 10, .burst = 2, .max_senders = 100});
  for (int i = 0; i < 100; ++i)
    EXPECT_EQ(limiter.excess("early " + std::to_string(i), clock.now()), std::nullopt);
  int admitted = 0;
  for (int i = 0; i < 1000; ++i) admitted += !limiter.excess("late " + std::to_string(i), clock.now());
  EXPECT_EQ(admitted, 2) << "the further senders share one bucket";
  EXPECT_EQ(limiter.num_senders(), 100u);
  clock.advance(200ms);  // every bucket is full again
  EXPECT_EQ(limiter.excess("new", clock.now()), std::nullopt);
  EXPECT_EQ(limiter.num_senders(), 1u);
}

TEST(RateLimiter, LimitsThatLetNothingThroughAreRefused) {
  EXPECT_THROW(RateLimiter({.per_second = 0}), InvalidArgument);
  EXPECT_THROW(RateLimiter({.burst = 0.5}), InvalidArgument);
  EXPECT_THROW(RateLimiter({.max_senders = 0}), InvalidArgument);
}

}  // namespace
}  // namespace allot::aggregator
