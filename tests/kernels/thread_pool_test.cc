#include "kernels/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace allot::kernels {
namespace {

TEST(ThreadPool, CallsEveryItemOnceForEveryNumberOfThreadsAndItems) {
  ThreadPool pool;
  for (const int threads : {1, 2, 3, 8, 2, 1}) {
    for (const int64_t items : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> calls(static_cast<size_t>(items));
      pool.for_each(items, threads, [&](int64_t i) { ++calls[static_cast<size_t>(i)]; });
      for (const auto& count : calls) ASSERT_EQ(count, 1) << threads << " threads, " << items << " items";
    }
  }
}

// Many loops one after the other: a wake-up that is missed would hang, a late one would take items of the
// next loop.
TEST(ThreadPool, RunsManyShortLoopsInARow) {
  ThreadPool pool;
  std::vector<int64_t> sums(64, 0);
  for (int loop = 0; loop < 3000; ++loop) {
    pool.for_each(static_cast<int64_t>(sums.size()), 1 + loop % 3,
                  [&](int64_t i) { sums[static_cast<size_t>(i)] += i; });
  }
  for (size_t i = 0; i < sums.size(); ++i) EXPECT_EQ(sums[i], static_cast<int64_t>(3000 * i));
}

TEST(ThreadPool, IsOneForEachCallingThread) {
  ThreadPool* mine = &ThreadPool::of_this_thread();
  EXPECT_EQ(mine, &ThreadPool::of_this_thread());
  ThreadPool* other = nullptr;
  std::atomic<int64_t> sum = 0;
  std::thread([&] {
    other = &ThreadPool::of_this_thread();
    other->for_each(100, 2, [&](int64_t i) { sum += i; });
  }).join();
  EXPECT_NE(mine, other);
  EXPECT_EQ(sum, 4950);
}

}  // namespace
}  // namespace allot::kernels
