#include "policy/allocation.h"

#include <gmock/gmock.h>

#include <functional>
#include <random>

#include "base/error.h"
#include "tests/names.h"

namespace allot::policy {
namespace {

double cost_of(const std::vector<double>& costs, const Schedule& schedule) {
  const size_t length = costs.size() / schedule.samples.size();
  double sum = 0;
  for (size_t layer = 0; layer < schedule.samples.size(); ++layer) {
    sum += costs[layer * length + static_cast<size_t>(schedule.samples[layer])];
  }
  return sum;
}

// The least cost of all schedules, by trying each.
double least_cost(const std::vector<double>& costs, int layers, int32_t total, int32_t floor) {
  double least = 1e300;
  Schedule schedule = uniform_schedule(layers, floor);
  const std::function<void(size_t, int32_t)> deal = [&](size_t layer, int32_t left) {
    if (layer + 1 == static_cast<size_t>(layers)) {
      schedule.samples[layer] = floor + left;
      least = std::min(least, cost_of(costs, schedule));
      return;
    }
    for (int32_t own = 0; own <= left; ++own) {
      schedule.samples[layer] = floor + own;
      deal(layer + 1, left - own);
    }
  };
  deal(0, total - layers * floor);
  return least;
}

TEST(CheapestSchedule, IsAsCheapAsTheCheapestOfAllSchedulesForCostsOfAnyShape) {
  std::mt19937_64 random(4);
  std::uniform_real_distribution<double> cost(-1, 1);
  for (int round = 0; round < 50; ++round) {
    const int32_t floor = round % 3;
    std::vector<double> costs(4 * 13);
    for (double& one : costs) one = cost(random);
    const Schedule found = cheapest_schedule(costs, 4, 12, floor);
    check_schedule(found, 4, floor, 12);
    EXPECT_DOUBLE_EQ(cost_of(costs, found), least_cost(costs, 4, 12, floor)) << "round " << round;
  }
}

TEST(CheapestSchedule, DealsLargeTotalsInLotsAndLosesLittle) {
  constexpr int64_t kTotal = 5000;
  std::vector<double> costs;
  for (const double weight : {1.0, 4.0, 9.0}) {
    for (int64_t samples = 0; samples <= kTotal; ++samples)
      costs.push_back(weight / static_cast<double>(samples + 1));
  }
  const Schedule found = cheapest_schedule(costs, 3, kTotal, 1);
  check_schedule(found, 3, 1, kTotal);
  // 1 / (s + 1) is best dealt by the square roots of the weights.
  EXPECT_NEAR(found.samples[0], 833, 10);
  EXPECT_NEAR(found.samples[1], 1667, 10);
  EXPECT_NEAR(found.samples[2], 2500, 10);
}

TEST(CheapestSchedule, RefusesATotalBelowTheFloors) {
  EXPECT_THAT([] { cheapest_schedule(std::vector<double>(12), 3, 3, 2); },
              ::testing::ThrowsMessage<InvalidArgument>(Names(3, 2, 3)));
}

}  // namespace
}  // namespace allot::policy
