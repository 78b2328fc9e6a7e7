#include "model/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>

#include "kernels/thread_pool.h"

namespace allot::model {

int resolve_threads(int threads) {
  return threads > 0 ? threads : std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

void run_parallel(int64_t count, int threads, const std::function<void(int64_t index, int worker)>& task) {
  const int64_t workers = std::min<int64_t>(count, threads);
  if (workers <= 1) {
    for (int64_t index = 0; index < count; ++index) task(index, 0);
    return;
  }
  std::atomic<int64_t> next = 0;
  std::exception_ptr failure;
  std::mutex failure_mutex;
  kernels::ThreadPool::of_this_thread().for_each(workers, threads, [&](int64_t worker) {
    try {
      for (int64_t index = next++; index < count; index = next++) task(index, static_cast<int>(worker));
    } catch (...) {
      next = count;
      const std::scoped_lock lock(failure_mutex);
      if (!failure) failure = std::current_exception();
    }
  });
  if (failure) std::rethrow_exception(failure);
}

}  // namespace allot::model
