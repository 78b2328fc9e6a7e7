#include "bench/generate.h"

#include <gtest/gtest.h>

namespace allot::bench {
namespace {

TEST(MedianTiming, IsTheRepetitionInTheMiddleAsAWhole) {
  std::vector<GenerateTiming> timings(3);
  timings[0].total_seconds = 5;
  timings[0].prefill_seconds = 1;
  timings[1].total_seconds = 1;
  timings[1].prefill_seconds = 3;
  timings[2].total_seconds = 2;
  timings[2].prefill_seconds = 2;
  const GenerateTiming middle = median(timings);
  EXPECT_EQ(middle.total_seconds, 2);
  EXPECT_EQ(middle.prefill_seconds, 2);
}

}  // namespace
}  // namespace allot::bench
