// A few threads that wait for short parallel loops. A decoder layer runs several loops of tens of
// microseconds, so a waiting thread first spins for a moment and only then sleeps.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace allot::kernels {

class ThreadPool {
 public:
  // The calling thread's own pool; it is made on the first call, grows to the largest number of threads asked
  // for, and ends with the calling thread.
  static ThreadPool& of_this_thread();

  ThreadPool() = default;
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Calls body(i) once for every i in [0, count), from the calling thread and num_threads - 1 others, and
  // returns when all calls have. Which thread takes which i is not defined. `body` must not throw and must
  // not use this pool.
  template <class Body>
  void for_each(int64_t count, int num_threads, const Body& body) {
    run(
        count, num_threads, [](const void* context, int64_t i) { (*static_cast<const Body*>(context))(i); },
        &body);
  }

 private:
  using Function = void (*)(const void* context, int64_t i);

  void run(int64_t count, int num_threads, Function function, const void* context);
  void take_items();
  void work(uint32_t seen_epoch, int index);

  std::vector<std::thread> threads_;
  // The loop in progress; written before epoch_ announces it.
  Function function_ = nullptr;
  const void* context_ = nullptr;
  int64_t count_ = 0;
  int participants_ = 0;  // pool threads that take part; the others go back to waiting
  std::atomic<bool> stop_{false};
  alignas(64) std::atomic<uint32_t> epoch_{0};
  alignas(64) std::atomic<int64_t> next_{0};
  alignas(64) std::atomic<uint32_t> running_{0};
};

}  // namespace allot::kernels
