// Time as an argument: decisions take a Clock (or a time point), so tests move time by hand and nothing
// has to sleep.
#pragma once

#include <chrono>

namespace allot {

// Milliseconds since the Unix epoch: what the history stores and messages carry.
using Timestamp = std::chrono::time_point<std::chrono::system_clock, std::chrono::milliseconds>;
using Duration = std::chrono::milliseconds;

class Clock {
 public:
  virtual ~Clock() = default;
  // Monotonic: never goes back while the process lives, whatever happens to the wall clock.
  virtual Timestamp now() const = 0;
};

// Wall clock read once at construction, advanced by the steady clock, so that a jump of the wall clock
// expires no lease.
class SystemClock final : public Clock {
 public:
  SystemClock()
      : wall_(std::chrono::time_point_cast<Duration>(std::chrono::system_clock::now())),
        steady_(std::chrono::steady_clock::now()) {}
  Timestamp now() const override {
    return wall_ + std::chrono::duration_cast<Duration>(std::chrono::steady_clock::now() - steady_);
  }

 private:
  Timestamp wall_;
  std::chrono::steady_clock::time_point steady_;
};

// A clock that only moves when told.
class ManualClock final : public Clock {
 public:
  explicit ManualClock(Timestamp start = Timestamp{}) : now_(start) {}
  Timestamp now() const override { return now_; }
  void advance(Duration by) { now_ += by; }

 private:
  Timestamp now_;
};

}  // namespace allot
