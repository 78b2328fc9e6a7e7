#include "aggregator/learning_curve.h"

#include <gmock/gmock.h>

#include <cmath>
#include <numeric>
#include <span>

#include "base/philox.h"
#include "wire/messages.pb.h"

namespace allot::aggregator {
namespace {

using testing::DoubleNear;
using testing::IsEmpty;
using testing::SizeIs;

constexpr double kRounding = 1e-12;

std::vector<double> rewards(int count) {
  std::vector<double> made;
  const DrawRow row{.key = {11, 0}};
  for (int i = 0; i < count; ++i)
    made.push_back(std::round(8 * draw_uniform(row, static_cast<uint32_t>(i))) / 8);
  return made;
}

wire::LearningCurve curve_of(const std::vector<double>& values) {
  LearningCurve curve;
  for (const double value : values) curve.add(value);
  wire::LearningCurve written;
  curve.write(&written);
  return written;
}

TEST(LearningCurveTest, WithoutEpisodesItIsEmpty) {
  const wire::LearningCurve curve = curve_of({});
  EXPECT_THAT(curve.episodes(), IsEmpty());
  EXPECT_EQ(curve.window(), 20);
  EXPECT_EQ(curve.episodes_per_point(), 1);
}

TEST(LearningCurveTest, WithAPointForEachEpisodeItIsTheMovingMeanWithItsInterval) {
  const std::vector<double> values = rewards(100);
  const wire::LearningCurve curve = curve_of(values);
  ASSERT_THAT(curve.mean(), SizeIs(100));
  for (int last = 0; last < 100; ++last) {
    const int size = std::min(last + 1, 20);
    const std::span<const double> window(values.data() + last + 1 - size, static_cast<size_t>(size));
    const double mean = std::accumulate(window.begin(), window.end(), 0.0) / size;
    double squares = 0;
    for (const double value : window) squares += (value - mean) * (value - mean);
    const double error = size < 2 ? 0 : std::sqrt(squares / (size - 1) / size);
    EXPECT_EQ(curve.episodes(last), last + 1);
    EXPECT_EQ(curve.reward(last), values[static_cast<size_t>(last)]);
    EXPECT_THAT(curve.mean(last), DoubleNear(mean, kRounding));
    EXPECT_THAT(curve.low(last), DoubleNear(std::max(0.0, mean - 1.959963984540054 * error), kRounding))
        << last;
    EXPECT_THAT(curve.high(last), DoubleNear(std::min(1.0, mean + 1.959963984540054 * error), kRounding))
        << last;
  }
}

TEST(LearningCurveTest, HoweverLongTheRunThePointsAreBoundedAndHoldEveryEpisodeOnce) {
  for (const int count : {255, 256, 257, 513, 100'003}) {
    const std::vector<double> values = rewards(count);
    const wire::LearningCurve curve = curve_of(values);
    ASSERT_LE(curve.episodes_size(), 256) << count;
    EXPECT_GE(curve.episodes_size(), std::min(count, 128)) << count;
    EXPECT_EQ(*curve.episodes().rbegin(), count);
    double sum = 0;
    int64_t before = 0;
    for (int i = 0; i < curve.episodes_size(); ++i) {
      const int64_t own = curve.episodes(i) - before;
      if (i + 1 < curve.episodes_size()) {
        EXPECT_EQ(own, curve.episodes_per_point());
      }
      sum += curve.reward(i) * static_cast<double>(own);
      before = curve.episodes(i);
      EXPECT_LE(curve.low(i), curve.mean(i));
      EXPECT_GE(curve.high(i), curve.mean(i));
    }
    EXPECT_THAT(sum, DoubleNear(std::accumulate(values.begin(), values.end(), 0.0), 1e-6)) << count;
  }
}

TEST(LearningCurveTest, TheBandEndsWhereTheKindOfRewardDoes) {
  const auto curve_of_kind = [](RewardKind kind) {
    LearningCurve curve(kind);
    for (const double reward : {0.1, 2.5, 0.2, 3.5}) curve.add(reward);
    wire::LearningCurve written;
    curve.write(&written);
    return written;
  };
  const wire::LearningCurve divergence = curve_of_kind(RewardKind::kDivergence);
  EXPECT_EQ(divergence.low(1), 0);
  EXPECT_GT(divergence.high(1), 2.5);
  EXPECT_EQ(curve_of_kind(RewardKind::kAnswers).high(1), 1);
}

}  // namespace
}  // namespace allot::aggregator
