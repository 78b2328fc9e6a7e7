// The independent parts of an analysis, on several threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

namespace allot::evaluation {

inline bool is_set(const std::atomic<bool>* stop) {
  return stop != nullptr && stop->load();
}

// Calls one(number) for 0 .. count - 1 on `threads` threads (0: all cores). `progress` is told how many are
// done, from any thread, one call at a time. False when `stop` was set before all were done; what has begun
// is ended.
bool for_each_repetition(int64_t count, int threads, const std::function<void(int64_t done)>& progress,
                         const std::atomic<bool>* stop, const std::function<void(int64_t number)>& one);

}  // namespace allot::evaluation
