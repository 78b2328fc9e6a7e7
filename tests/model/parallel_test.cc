#include "model/parallel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <vector>

#include "base/error.h"
#include "tests/names.h"

namespace allot::model {
namespace {

using ::testing::ThrowsMessage;

TEST(RunParallel, RunsEveryIndexOnce) {
  for (int threads : {1, 2, 5}) {
    for (int64_t count : {0, 1, 3, 1000}) {
      std::vector<std::atomic<int>> runs(count);
      run_parallel(count, threads, [&](int64_t index, int) { ++runs[index]; });
      for (const std::atomic<int>& times : runs) EXPECT_EQ(times, 1);
    }
  }
}

TEST(RunParallel, GivesAWorkersMemoryToOneThreadAtATime) {
  constexpr int kThreads = 4;
  std::vector<std::atomic<int>> users(kThreads);
  std::atomic<int> clashes = 0;
  std::vector<std::atomic<int64_t>> sums(kThreads);
  run_parallel(2000, kThreads, [&](int64_t index, int worker) {
    if (users[worker]++ != 0) ++clashes;
    sums[worker] += index;
    --users[worker];
  });
  EXPECT_EQ(clashes, 0);
  EXPECT_EQ(std::accumulate(sums.begin(), sums.end(), int64_t{0}), 2000 * 1999 / 2);
}

TEST(RunParallel, RethrowsWhatATaskThrows) {
  for (int threads : {1, 3}) {
    const auto fail_at_seven = [](int64_t index, int) {
      if (index == 7) throw InvalidArgument("seven");
    };
    EXPECT_THAT([&] { run_parallel(100, threads, fail_at_seven); },
                ThrowsMessage<InvalidArgument>(Names("seven")));
  }
}

TEST(ResolveThreads, TakesAllCoresForZero) {
  EXPECT_EQ(resolve_threads(3), 3);
  EXPECT_GE(resolve_threads(0), 1);
}

}  // namespace
}  // namespace allot::model
