#include "policy/recorded.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "policy/draws.h"
#include "policy/policy.h"
#include "tests/names.h"

namespace allot::policy {
namespace {

using ::testing::ThrowsMessage;

constexpr double kOwn = 0.05, kCommon = 0.4;

// Layer 2 matters most.
double divergence_at(const Schedule& schedule) {
  double sum = 0;
  for (size_t layer = 0; layer < schedule.samples.size(); ++layer)
    sum += (layer == 2 ? 1.0 : 0.1) / schedule.samples[layer];
  return sum;
}

// 40 batches of eight schedules around the even one of 64, with noise of the spreads above.
std::vector<RecordedBatch> batches() {
  DrawStream draws(3, 0, draw_purpose("recorded-test"));
  std::vector<RecordedBatch> all(40);
  for (RecordedBatch& batch : all) {
    const double common = kCommon * standard_normal(draws);
    for (int k = 0; k < 8; ++k) {
      std::vector<double> shares(8);
      double sum = 0;
      for (double& share : shares) sum += share = std::exp(standard_normal(draws));
      Schedule schedule = even_schedule(8, 8, 1);
      for (int32_t left = 56; left > 0; --left) {
        double at = draws.uniform() * sum;
        size_t layer = 0;
        while (layer < 7 && (at -= shares[layer]) > 0) ++layer;
        ++schedule.samples[layer];
      }
      batch.divergences.push_back(divergence_at(schedule) * std::exp(common + kOwn * standard_normal(draws)));
      batch.schedules.push_back(std::move(schedule));
    }
  }
  return all;
}

TEST(RecordedDivergences, KnowWhatLayersNeedAndHowMeasurementsScatter) {
  const RecordedDivergences recorded(batches(), 64, 1, 16);
  EXPECT_EQ(recorded.layers(), 8);
  EXPECT_EQ(recorded.measurements(), 320);
  EXPECT_EQ(recorded.even(), uniform_schedule(8, 8));
  EXPECT_EQ(recorded.best().total(), 64);
  EXPECT_NEAR(divergence_at(recorded.best()), 0.1613, 0.002) << "(1 + 7 sqrt(0.1))^2 / 64 is the least";
  EXPECT_NEAR(recorded.own_spread(), kOwn, 0.02);
  EXPECT_NEAR(recorded.batch_spread(), kCommon, 0.15);
  const double ratio = recorded.expected(recorded.best()) / recorded.expected(recorded.even());
  EXPECT_NEAR(ratio, divergence_at(recorded.best()) / divergence_at(recorded.even()), 0.05);
  EXPECT_DOUBLE_EQ(recorded.share_of_gap(recorded.even()), 0);
  EXPECT_DOUBLE_EQ(recorded.share_of_gap(recorded.best()), 1);
  EXPECT_LT(recorded.share_of_gap(parse_schedule("22,6,6,6,6,6,6,6")), 0);
}

TEST(RecordedDivergences, AMeasurementIsAFunctionOfScheduleGroupAndSeed) {
  const RecordedDivergences recorded(batches(), 64, 1, 16);
  const Schedule even = recorded.even(), best = recorded.best();
  EXPECT_EQ(recorded.measured(even, 7, 16, 1), recorded.measured(even, 7, 16, 1));
  EXPECT_NE(recorded.measured(even, 7, 16, 1), recorded.measured(even, 8, 16, 1));
  EXPECT_NE(recorded.measured(even, 7, 16, 1), recorded.measured(even, 7, 16, 2));
  // What a group has in common does not show in the ratio of two of its measurements.
  const double expected = std::log(recorded.expected(even) / recorded.expected(best));
  double squares = 0, squares_of_one = 0;
  constexpr int kGroups = 400;
  for (int group = 0; group < kGroups; ++group) {
    const double one = std::log(recorded.measured(even, group, 16, 1));
    const double off = one - std::log(recorded.measured(best, group, 16, 1)) - expected;
    squares += off * off;
    squares_of_one += std::pow(one - std::log(recorded.expected(even)), 2);
  }
  EXPECT_NEAR(std::sqrt(squares / kGroups), std::sqrt(2) * recorded.own_spread(), 0.01);
  EXPECT_NEAR(std::sqrt(squares_of_one / kGroups), std::hypot(recorded.own_spread(), recorded.batch_spread()),
              0.05);
}

TEST(RecordedDivergences, OnAQuarterOfTheTextsAMeasurementIsTwiceAsFarOff) {
  const RecordedDivergences recorded(batches(), 64, 1, 16);
  const Schedule even = recorded.even();
  const auto off = [&](int questions) {
    return std::log(recorded.measured(even, 7, questions, 1)) - std::log(recorded.expected(even));
  };
  EXPECT_NEAR(off(4), 2 * off(16), 1e-9);
  EXPECT_NEAR(off(64), off(16) / 2, 1e-9);
  // What a learner is told is on the questions of its episodes.
  const auto learn = [&](int questions) {
    const auto learner = make_policy(
        {.name = "pairs", .layers = 8, .total = 64, .seed = 4, .reward_kind = RewardKind::kDivergence});
    double worst = 0;
    Ground ground = recorded.ground(4);
    ground.divergence = [&, measured = ground.divergence](const Schedule& schedule, int64_t group,
                                                          int asked) {
      EXPECT_EQ(asked, questions);
      const double divergence = measured(schedule, group, asked);
      worst = std::max(worst, std::abs(std::log(divergence / recorded.expected(schedule))));
      return divergence;
    };
    (void)rehearse(*learner, ground, {.episodes = 60, .questions_per_episode = questions});
    return worst;
  };
  EXPECT_GT(learn(1), 2 * learn(16));
}

TEST(RecordedDivergences, ALearnerThatClimbsClosesTheGap) {
  const RecordedDivergences recorded(batches(), 64, 1, 16);
  for (const char* name : {"pairs", "auto"}) {
    const auto learner = make_policy({.name = name,
                                      .layers = 8,
                                      .total = 64,
                                      .seed = 4,
                                      .divergence_episodes = 200,
                                      .reward_kind = RewardKind::kDivergence});
    const std::vector<double> curve =
        rehearse(*learner, recorded.ground(4), {.episodes = 200, .in_flight = 4, .checkpoints = {1, 200}});
    EXPECT_DOUBLE_EQ(curve[0], 0) << name;
    EXPECT_GT(curve[1], 0.8) << name;
  }
}

TEST(RecordedDivergences, TooFewAreRefused) {
  const std::vector<RecordedBatch> all = batches();
  EXPECT_THAT([&] { RecordedDivergences(std::span(all).first(1), 64, 1, 16); },
              ThrowsMessage<InvalidArgument>(Names(1, "batches")));
  EXPECT_THAT([] { RecordedDivergences({}, 64, 1, 16); },
              ThrowsMessage<InvalidArgument>(Names(0, "batches")));
  // With one sample a layer there is nothing to share out.
  EXPECT_THAT([&] { RecordedDivergences(all, 8, 1, 16); }, ThrowsMessage<InvalidArgument>(Names("total", 8)));
  EXPECT_THAT([&] { RecordedDivergences(all, 64, 1, 0); }, ThrowsMessage<InvalidArgument>(Names(0, "texts")));
}

}  // namespace
}  // namespace allot::policy
