// The rewards of a run's learning episodes as a curve of bounded size: whatever the number of episodes, at
// most kMaxPoints points, so that a status stays small and adding an episode costs the same at every length.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "episode/reward_kind.h"
#include "wire/messages_fwd.h"

namespace allot::aggregator {

class LearningCurve {
 public:
  // Episodes in the moving mean.
  static constexpr int64_t kWindow = 20;
  static constexpr size_t kMaxPoints = 256;

  explicit LearningCurve(RewardKind kind = RewardKind::kAnswers) : kind_(kind) {}

  // Adds the next reward, in the order in which the episodes were told.
  void add(double reward);
  // Sets `curve`. With one episode per point, mean and interval at a point are those of the last kWindow
  // episodes (of all while there are fewer); with more episodes per point, those of the fewest whole
  // points that hold kWindow episodes. The interval is mean -+ 1.96 standard errors, cut to the range of
  // the reward kind.
  void write(wire::LearningCurve* curve) const;

 private:
  // Count, sum and sum of squares of the rewards of successive episodes.
  struct Point {
    int64_t episodes = 0;
    double sum = 0;
    double squares = 0;

    Point& operator+=(const Point& other);
  };

  RewardKind kind_;
  int64_t episodes_per_point_ = 1;  // doubles whenever the points are full
  std::vector<Point> points_;
};

}  // namespace allot::aggregator
