#include "base/clock.h"

#include <gtest/gtest.h>

namespace allot {
namespace {

using std::chrono::milliseconds;

TEST(Clock, AManualClockMovesOnlyWhenTold) {
  ManualClock clock(Timestamp(milliseconds(1000)));
  EXPECT_EQ(clock.now(), Timestamp(milliseconds(1000)));
  EXPECT_EQ(clock.now(), Timestamp(milliseconds(1000)));
  clock.advance(milliseconds(5));
  EXPECT_EQ(clock.now(), Timestamp(milliseconds(1005)));
}

TEST(Clock, TheSystemClockStartsAtTheWallClockAndNeverGoesBack) {
  const auto before = std::chrono::time_point_cast<Duration>(std::chrono::system_clock::now());
  const SystemClock clock;
  const Timestamp first = clock.now();
  EXPECT_GE(first, before);
  EXPECT_LE(first, std::chrono::system_clock::now());
  Timestamp last = first;
  for (int i = 0; i < 1000; ++i) {
    const Timestamp now = clock.now();
    ASSERT_GE(now, last);
    last = now;
  }
}

}  // namespace
}  // namespace allot
