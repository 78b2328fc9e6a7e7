// What the service loop shows to other threads: immutable snapshots, and when the loop last completed a
// round. The loop never waits for a reader; a reader gets the latest snapshot and may keep it for any time.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "base/clock.h"
#include "wire/messages.pb.h"

namespace allot::aggregator {

// Counts of observations at or below each bound, as Prometheus' histograms have them.
class Histogram {
 public:
  static constexpr size_t kBounds = 12;
  explicit Histogram(const std::array<double, kBounds>& bounds) : bounds_(bounds) {}

  void observe(double value, int64_t times = 1);

  const std::array<double, kBounds>& bounds() const { return bounds_; }
  // Observations <= bounds()[i].
  int64_t up_to(size_t i) const;
  int64_t count() const { return up_to(kBounds); }
  double sum() const { return sum_; }

 private:
  std::array<double, kBounds> bounds_;         // ascending
  std::array<int64_t, kBounds + 1> counts_{};  // of each interval; the last is above every bound
  double sum_ = 0;
};

// What this process measured of itself since it started.
struct ServiceFigures {
  // Seconds that workers reported for accepted episodes, late and stale ones included.
  Histogram episode_seconds{{0.1, 0.3, 1, 3, 10, 30, 60, 120, 300, 600, 1800, 3600}};
  // Time from when a round of the loop began to take messages until a reply went to the socket.
  Histogram reply_seconds{{0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5}};
  Histogram commit_seconds{{0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5}};
  int64_t messages = 0;     // received
  int64_t over_rate = 0;    // of these: not read, because their sender sends too many
  int64_t replies = 0;      // sent
  int64_t records = 0;      // committed to the history
  Timestamp last_progress;  // when the last episode was told; before the first, the start
};

struct Snapshot {
  wire::Status status;
  ServiceFigures figures;
  Timestamp at;
  // What the wall clock was ahead of `at` then: times here begin with the wall clock of the start, which may
  // have been wrong.
  Duration wall_ahead{};
};

class LiveState {
 public:
  using Moment = std::chrono::steady_clock::time_point;

  // Until the first snapshot, when nothing of the run is known yet, `why_not_ready` says what is being done.
  explicit LiveState(std::string why_not_ready, Moment now = std::chrono::steady_clock::now());

  // The next functions are for the service's thread.
  void publish(std::shared_ptr<const Snapshot> snapshot);
  void went_round(Moment now) { last_round_.store(now); }
  // Notes that the run is no longer served; snapshots stay.
  void stopping();

  // The functions from here on are for any thread. The latest snapshot; null before the first.
  std::shared_ptr<const Snapshot> snapshot() const;
  // Empty while workers are served, else the reason why they are not.
  std::string why_not_ready() const;
  // Time since the loop last completed a round, or since the start while the run is being opened.
  Duration silence(Moment now) const;
  // False until the first snapshot: opening a long history takes time, and a liveness probe must not kill the
  // process for it.
  bool serving() const;

 private:
  mutable std::mutex mutex_;  // held only to copy a pointer or a short text
  std::shared_ptr<const Snapshot> snapshot_;
  std::string why_not_ready_;
  std::atomic<Moment> last_round_;
};

}  // namespace allot::aggregator
