#include "evaluation/repetitions.h"

#include <algorithm>
#include <mutex>
#include <thread>

#include "kernels/thread_pool.h"

namespace allot::evaluation {

bool for_each_repetition(int64_t count, int threads, const std::function<void(int64_t done)>& progress,
                         const std::atomic<bool>* stop, const std::function<void(int64_t number)>& one) {
  const int cores = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  std::mutex telling;
  int64_t done = 0;
  kernels::ThreadPool::of_this_thread().for_each(count, threads > 0 ? threads : cores, [&](int64_t number) {
    if (is_set(stop)) return;
    one(number);
    const std::lock_guard lock(telling);
    if (progress) progress(++done);
  });
  return !is_set(stop);
}

}  // namespace allot::evaluation
