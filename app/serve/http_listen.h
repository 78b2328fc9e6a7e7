// How a cpp-httplib server listens and queues here, with bounds that the library does not set. Only sources
// that make a server include this header; it brings cpp-httplib with it.
#pragma once

#include <httplib.h>

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "aggregator/http_address.h"

namespace allot::app {

// Connections wait for a thread in a queue of bounded length. When it is full, the accepting thread waits and
// the system refuses further connections, so memory and open files stay bounded whatever clients do.
class BoundedQueue final : public httplib::TaskQueue {
 public:
  BoundedQueue(size_t threads, size_t waiting) : most_waiting_(waiting) {
    for (size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
  }

  void enqueue(std::function<void()> task) override {
    std::unique_lock lock(mutex_);
    taken_.wait(lock, [this] { return tasks_.size() < most_waiting_; });
    tasks_.push_back(std::move(task));
    added_.notify_one();
  }

  void shutdown() override {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    added_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  void work() {
    while (true) {
      std::unique_lock lock(mutex_);
      added_.wait(lock, [this] { return !tasks_.empty() || ending_; });
      if (tasks_.empty()) return;
      const auto task = std::move(tasks_.front());
      tasks_.pop_front();
      taken_.notify_one();
      lock.unlock();
      task();
    }
  }

  const size_t most_waiting_;
  std::mutex mutex_;
  std::condition_variable added_;
  std::condition_variable taken_;
  std::deque<std::function<void()>> tasks_;
  std::vector<std::thread> threads_;
  bool ending_ = false;
};

// Binds the server, with room for kMostWaitingConnections, and returns the port. Throws
// NetworkError when the address cannot be bound.
int bind_http(httplib::Server* server, const aggregator::HttpAddress& address);

}  // namespace allot::app
