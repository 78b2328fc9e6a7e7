#include "policy/divergence_model.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "policy/draws.h"
#include "tests/message_of.h"
#include "tests/names.h"

namespace allot::policy {
namespace {

using ::testing::ElementsAre;

// Random schedules of `layers` layers with 1 to 8 samples each.
std::vector<Schedule> random_schedules(int layers, int count, uint64_t number) {
  DrawStream stream(5, number, draw_purpose("divergence-model-test"));
  std::vector<Schedule> schedules;
  for (int i = 0; i < count; ++i) {
    Schedule schedule;
    for (int layer = 0; layer < layers; ++layer)
      schedule.samples.push_back(1 + static_cast<int32_t>(stream.below(8)));
    schedules.push_back(std::move(schedule));
  }
  return schedules;
}

// 4 / s + 1 / s + 0.25 / s, and so on.
double divergence_of(const Schedule& schedule) {
  double sum = 0, weight = 4;
  for (const int32_t samples : schedule.samples) {
    sum += weight / samples;
    weight /= 4;
  }
  return sum;
}

// `batches` of 12 schedules each, measured without noise but for a factor that a batch has in common.
DivergenceModel fitted(int layers, int batches) {
  DivergenceModel model(layers, 4);
  for (int batch = 0; batch < batches; ++batch) {
    const std::vector<Schedule> schedules = random_schedules(layers, 12, static_cast<uint64_t>(batch));
    std::vector<double> divergences;
    for (const Schedule& schedule : schedules)
      divergences.push_back(divergence_of(schedule) * (batch % 2 == 0 ? 1.2 : 1 / 1.2));
    model.add(schedules, divergences);
    model.fit(std::vector<double>(static_cast<size_t>(layers), 4.0));
  }
  return model;
}

TEST(DivergenceModel, FindsTheSurfaceBehindItsMeasurements) {
  const DivergenceModel model = fitted(4, 8);
  EXPECT_EQ(model.measurements(), 96);
  EXPECT_LT(model.residual(), 0.05);
  for (const Schedule& schedule : random_schedules(4, 20, 1000))
    EXPECT_NEAR(model.log_divergence(schedule), std::log(divergence_of(schedule)), 0.1)
        << schedule.to_string();
}

// By Lagrange the samples go as the square roots of 4, 1, 1/4 and 1/16: 16, 8, 4, 2 of 30.
TEST(DivergenceModel, ItsBestScheduleIsThatOfTheSurface) {
  EXPECT_THAT(fitted(4, 8).best(30, 1).samples, ElementsAre(testing::AllOf(testing::Ge(15), testing::Le(17)),
                                                            testing::AllOf(testing::Ge(7), testing::Le(9)),
                                                            testing::AllOf(testing::Ge(3), testing::Le(5)),
                                                            testing::AllOf(testing::Ge(1), testing::Le(3))));
}

TEST(DivergenceModel, KeepsToBoundsAndTotal) {
  const DivergenceModel model = fitted(4, 4);
  const std::vector<int32_t> least{1, 2, 2, 5}, most{6, 9, 9, 9};
  const Schedule schedule = model.best(20, least, most);
  EXPECT_EQ(schedule.total(), 20);
  EXPECT_EQ(schedule.samples[0], 6) << "the layer that matters most is at its bound";
  EXPECT_EQ(schedule.samples[3], 5);
}

TEST(DivergenceModel, NoExchangeOfASampleIsBetterThanItsBest) {
  const DivergenceModel model = fitted(6, 6);
  const Schedule best = model.best(24, 1);
  for (size_t from = 0; from < 6; ++from) {
    for (size_t to = 0; to < 6; ++to) {
      if (from == to || best.samples[from] == 1) continue;
      Schedule other = best;
      --other.samples[from];
      ++other.samples[to];
      EXPECT_GE(model.log_divergence(other), model.log_divergence(best) - 1e-12) << from << " to " << to;
    }
  }
}

TEST(DivergenceModel, SensitivitiesAreWhatASampleChanges) {
  const DivergenceModel model = fitted(4, 8);
  const Schedule schedule{{8, 4, 2, 1}};
  for (int layer = 0; layer < 4; ++layer) {
    const LayerSensitivity found = model.sensitivity(schedule, layer);
    Schedule more = schedule, fewer = schedule;
    ++more.samples[static_cast<size_t>(layer)];
    --fewer.samples[static_cast<size_t>(layer)];
    const double here = std::log(divergence_of(schedule));
    EXPECT_NEAR(found.one_more, here - std::log(divergence_of(more)), 0.03) << layer;
    EXPECT_GT(found.one_more, 0) << layer;
    EXPECT_LT(found.one_fewer, 0) << layer;
    EXPECT_GT(found.error, 0) << layer;
    EXPECT_LT(found.error, 0.05) << layer;
    if (layer < 3) {
      EXPECT_NEAR(found.one_fewer, here - std::log(divergence_of(fewer)), 0.05) << layer;
    }
  }
  EXPECT_EQ(model.sensitivity(Schedule{{8, 4, 2, 0}}, 3).one_fewer, -std::numeric_limits<double>::infinity());
}

TEST(DivergenceModel, RefusesWhatIsNoMeasurement) {
  DivergenceModel model(2, 4);
  const std::vector<Schedule> one{{{3, 4}}}, wrong{{{3, 4, 5}}};
  const auto refusal = [&](const std::vector<Schedule>& schedules, const std::vector<double>& divergences) {
    return message_of<InvalidArgument>([&] { model.add(schedules, divergences); });
  };
  EXPECT_THAT(refusal(one, {0.1, 0.2}), Names(2, 1));
  EXPECT_THAT(refusal(wrong, {0.1}), Names(3, 2));
  EXPECT_THAT(refusal(one, {0.0}), Names("divergence 0", 0));
  EXPECT_THAT(refusal(one, {std::nan("")}), Names("nan"));
  EXPECT_EQ(model.measurements(), 0);
}

}  // namespace
}  // namespace allot::policy
