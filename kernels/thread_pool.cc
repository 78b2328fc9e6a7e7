#include "kernels/thread_pool.h"

#include <algorithm>

namespace allot::kernels {
namespace {

// About five microseconds: longer than the gap between two row operations of a layer, far shorter than a
// matrix product, whose threads want the core.
constexpr int kSpins = 100;

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Waits until `value` differs from `old` and returns its new value.
uint32_t wait_for_change(const std::atomic<uint32_t>& value, uint32_t old) {
  for (int spin = 0; spin < kSpins; ++spin) {
    const uint32_t now = value.load(std::memory_order_acquire);
    if (now != old) return now;
    pause();
  }
  value.wait(old, std::memory_order_acquire);
  return value.load(std::memory_order_acquire);
}

}  // namespace

ThreadPool& ThreadPool::of_this_thread() {
  thread_local ThreadPool pool;
  return pool;
}

ThreadPool::~ThreadPool() {
  stop_.store(true, std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::take_items() {
  for (int64_t i = next_.fetch_add(1, std::memory_order_relaxed); i < count_;
       i = next_.fetch_add(1, std::memory_order_relaxed)) {
    function_(context_, i);
  }
}

void ThreadPool::work(uint32_t seen_epoch, int index) {
  while (true) {
    seen_epoch = wait_for_change(epoch_, seen_epoch);
    if (stop_.load(std::memory_order_relaxed)) return;
    if (index < participants_) take_items();
    if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) running_.notify_one();
  }
}

void ThreadPool::run(int64_t count, int num_threads, Function function, const void* context) {
  const auto helpers = static_cast<int>(std::min<int64_t>(std::max(num_threads, 1), count)) - 1;
  if (helpers <= 0) {
    for (int64_t i = 0; i < count; ++i) function(context, i);
    return;
  }
  while (static_cast<int>(threads_.size()) < helpers) {
    const auto index = static_cast<int>(threads_.size());
    threads_.emplace_back(
        [this, epoch = epoch_.load(std::memory_order_relaxed), index] { work(epoch, index); });
  }
  function_ = function;
  context_ = context;
  count_ = count;
  participants_ = helpers;
  next_.store(0, std::memory_order_relaxed);
  // Every pool thread answers each epoch, taking part or not, so none can still read these fields when the
  // next loop writes them.
  running_.store(static_cast<uint32_t>(threads_.size()), std::memory_order_relaxed);
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  take_items();
  for (uint32_t left = running_.load(std::memory_order_acquire); left != 0;)
    left = wait_for_change(running_, left);
}

}  // namespace allot::kernels
