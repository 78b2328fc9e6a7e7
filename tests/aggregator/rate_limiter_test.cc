#include "aggregator/rate_limiter.h"

#include <gtest/gtest.h>

#include <string>

#include "base/clock.h"
#include "base/error.h"

namespace allot::aggregator {
namespace {

using namespace std::chrono_literals;

TEST(RateLimiter, ABurstPassesAndWhatFollowsIsToldOnceWhenToComeAgain) {
  ManualClock clock;
  RateLimiter limiter({.per_second = 5, .burst = 3});
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(limiter.excess("a", clock.now()));
  const auto first = limiter.excess("a", clock.now());
  ASSERT_TRUE(first);
  EXPECT_EQ(first->wait, 200ms);
  EXPECT_TRUE(first->tell);
  clock.advance(60ms);
  EXPECT_EQ(limiter.excess("a", clock.now())->wait, 140ms);
  EXPECT_FALSE(limiter.excess("a", clock.now())->tell) << "it has been told";
  clock.advance(140ms);
  EXPECT_FALSE(limiter.excess("a", clock.now()));
  EXPECT_TRUE(limiter.excess("a", clock.now())->tell) << "the time that it was told is over";
  EXPECT_FALSE(limiter.excess("a", clock.now())->tell);
}

TEST(RateLimiter, NobodyIsToldMoreOftenThanTenTimesASecond) {
  ManualClock clock;
  RateLimiter limiter({.per_second = 1'000, .burst = 1});
  int told = 0;
  for (int ms = 0; ms < 1'000; ++ms) {
    for (int i = 0; i < 5; ++i)
      if (const auto excess = limiter.excess("a", clock.now())) {
        told += excess->tell;
        EXPECT_GE(excess->wait, 100ms);
      }
    clock.advance(1ms);
  }
  EXPECT_EQ(told, 10);
}

TEST(RateLimiter, ASenderDoesNotUseUpTheRateOfAnother) {
  ManualClock clock;
  RateLimiter limiter({.per_second = 1, .burst = 1});
  EXPECT_FALSE(limiter.excess("a", clock.now()));
  EXPECT_TRUE(limiter.excess("a", clock.now()));
  EXPECT_FALSE(limiter.excess("b", clock.now()));
}

TEST(RateLimiter, QuietTimeFillsTheBucketAndNoMore) {
  ManualClock clock;
  RateLimiter limiter({.per_second = 10, .burst = 2});
  clock.advance(1h);
  EXPECT_FALSE(limiter.excess("a", clock.now()));
  clock.advance(1h);
  for (int i = 0; i < 2; ++i) EXPECT_FALSE(limiter.excess("a", clock.now()));
  EXPECT_TRUE(limiter.excess("a", clock.now()));
}

TEST(RateLimiter, AClockThatGoesBackLetsNobodyThroughAndCostsNobodyTime) {
  ManualClock clock(Timestamp{1h});
  RateLimiter limiter({.per_second = 10, .burst = 1});
  EXPECT_FALSE(limiter.excess("a", clock.now()));
  EXPECT_EQ(limiter.excess("a", Timestamp{})->wait, 100ms);
  EXPECT_EQ(limiter.excess("a", clock.now())->wait, 100ms);
}

TEST(RateLimiter, MemoryIsBoundedAndQuietSendersMakeRoom) {
  ManualClock clock;
  RateLimiter limiter({.per_second = 10, .burst = 2, .max_senders = 100});
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(limiter.excess("early " + std::to_string(i), clock.now()));
  int admitted = 0;
  for (int i = 0; i < 1000; ++i) admitted += !limiter.excess("late " + std::to_string(i), clock.now());
  EXPECT_EQ(admitted, 2) << "the further senders share one bucket";
  EXPECT_EQ(limiter.num_senders(), 100u);
  clock.advance(200ms);  // every bucket is full again
  EXPECT_FALSE(limiter.excess("new", clock.now()));
  EXPECT_EQ(limiter.num_senders(), 1u);
}

TEST(RateLimiter, LimitsThatLetNothingThroughAreRefused) {
  EXPECT_THROW(RateLimiter({.per_second = 0}), InvalidArgument);
  EXPECT_THROW(RateLimiter({.burst = 0.5}), InvalidArgument);
  EXPECT_THROW(RateLimiter({.max_senders = 0}), InvalidArgument);
}

}  // namespace
}  // namespace allot::aggregator
