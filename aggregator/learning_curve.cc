#include "aggregator/learning_curve.h"

#include <algorithm>

#include "base/proportion.h"
#include "wire/messages.pb.h"

namespace allot::aggregator {

LearningCurve::Point& LearningCurve::Point::operator+=(const Point& other) {
  episodes += other.episodes;
  sum += other.sum;
  squares += other.squares;
  return *this;
}

void LearningCurve::add(double reward) {
  if (points_.empty() || points_.back().episodes == episodes_per_point_) {
    if (points_.size() == kMaxPoints) {
      for (size_t i = 0; i < kMaxPoints / 2; ++i) (points_[i] = points_[2 * i]) += points_[2 * i + 1];
      points_.resize(kMaxPoints / 2);
      episodes_per_point_ *= 2;
    }
    points_.emplace_back();
  }
  points_.back() += {1, reward, reward * reward};
}

void LearningCurve::write(wire::LearningCurve* curve) const {
  const RewardKindRow& row = row_of(kind_);
  curve->Clear();
  curve->set_window(kWindow);
  curve->set_episodes_per_point(episodes_per_point_);
  int64_t episodes = 0;
  for (size_t last = 0; last < points_.size(); ++last) {
    episodes += points_[last].episodes;
    Point window;
    for (size_t i = last + 1; i > 0 && window.episodes < kWindow; --i) window += points_[i - 1];
    const auto count = static_cast<double>(window.episodes);
    const double mean = window.sum / count;
    const auto [low, high] = mean_bounds(mean, window.squares - count * mean * mean, window.episodes);
    curve->add_episodes(episodes);
    curve->add_reward(points_[last].sum / static_cast<double>(points_[last].episodes));
    curve->add_mean(mean);
    curve->add_low(row.clamp(low));
    curve->add_high(row.clamp(high));
  }
}

}  // namespace allot::aggregator
