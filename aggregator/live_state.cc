#include "aggregator/live_state.h"

#include <algorithm>
#include <numeric>

namespace allot::aggregator {

void Histogram::observe(double value, int64_t times) {
  const auto bound = std::ranges::lower_bound(bounds_, value);
  counts_[static_cast<size_t>(bound - bounds_.begin())] += times;
  sum_ += value * static_cast<double>(times);
}

int64_t Histogram::up_to(size_t i) const {
  return std::accumulate(counts_.begin(), counts_.begin() + static_cast<std::ptrdiff_t>(i) + 1, int64_t{0});
}

LiveState::LiveState(std::string why_not_ready, Moment now)
    : why_not_ready_(std::move(why_not_ready)), last_round_(now) {}

void LiveState::publish(std::shared_ptr<const Snapshot> snapshot) {
  const std::lock_guard lock(mutex_);
  // The replaced snapshot is freed after the lock is released, unless a reader still holds it.
  snapshot_.swap(snapshot);
  why_not_ready_.clear();
}

void LiveState::stopping() {
  const std::lock_guard lock(mutex_);
  why_not_ready_ = "the aggregator is stopping";
}

std::shared_ptr<const Snapshot> LiveState::snapshot() const {
  const std::lock_guard lock(mutex_);
  return snapshot_;
}

std::string LiveState::why_not_ready() const {
  const std::lock_guard lock(mutex_);
  return why_not_ready_;
}

Duration LiveState::silence(Moment now) const {
  return std::chrono::duration_cast<Duration>(now - last_round_.load());
}

bool LiveState::serving() const {
  const std::lock_guard lock(mutex_);
  return snapshot_ != nullptr;
}

}  // namespace allot::aggregator
