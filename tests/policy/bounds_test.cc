#include "policy/bounds.h"

#include <gmock/gmock.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "policy/allocation.h"
#include "tests/message_of.h"
#include "tests/names.h"

namespace allot::policy {
namespace {

using ::testing::ElementsAre;
using ::testing::ThrowsMessage;

TEST(Bounds, ReadAPinARangeAndOpenEndsAndWriteThemBack) {
  const Bounds bounds = parse_bounds("3:4,5-9:2-12,10:2-,11:-8,0-1:6-6");
  EXPECT_THAT(bounds.ranges,
              ElementsAre(Bounds::Range{3, 3, 4, 4}, Bounds::Range{5, 9, 2, 12}, Bounds::Range{10, 10, 2, {}},
                          Bounds::Range{11, 11, {}, 8}, Bounds::Range{0, 1, 6, 6}));
  EXPECT_EQ(bounds.to_string(), "3:4,5-9:2-12,10:2-,11:-8,0-1:6");
  EXPECT_EQ(parse_bounds(bounds.to_string()), bounds);
  EXPECT_TRUE(parse_bounds("").empty());
}

TEST(Bounds, MakeLayersExact) {
  const Bounds bounds = parse_bounds("5:exact,0-1:exact,3:4");
  EXPECT_EQ(bounds.to_string(), "5:exact,0-1:exact,3:4");
  EXPECT_THAT(bounds.exact_layers(8), ElementsAre(0, 1, 5));
  EXPECT_THAT(bounds.exact_layers(5), ElementsAre(0, 1));
  const Limits limits = limits_of(bounds, 6, 10, 1);
  EXPECT_THAT(limits.least, ElementsAre(kExactLayer, kExactLayer, 1, 4, 1, kExactLayer));
  EXPECT_THAT(limits.most, ElementsAre(kExactLayer, kExactLayer, 10, 4, 10, kExactLayer));
  EXPECT_NO_THROW(check_limits(parse_schedule("exact,exact,3,4,3,exact"), limits));
  const auto fault = [&](const char* schedule, const Limits& kept) {
    return message_of<InvalidArgument>([&] { check_limits(parse_schedule(schedule), kept); });
  };
  EXPECT_THAT(fault("exact,2,3,4,1,exact", limits), Names("layer 1", 2, "exact", "1:exact"));
  EXPECT_THAT(fault("exact,exact,exact,4,6,exact", limits), Names("layer 2", "exact", "2:exact"));
  EXPECT_THAT(fault("exact,2,8", {}), Names("layer 0", "exact", "0:exact"));
}

TEST(Bounds, AnEntryThatIsNoneIsNamed) {
  for (const std::string entry : {"", "3", "3:", ":4", "3:-", "3:a", "3-:4", "-3:4", "3:2-1-4", "3:4 ",
                                  "3:-2-4", "3:99999999999", "3:Exact", "exact"}) {
    EXPECT_THAT([&] { parse_bounds("1:2," + entry); },
                ThrowsMessage<InvalidArgument>(Names("'" + entry + "'", "LAYERS:RANGE", "5-9", "2-12")))
        << entry;
  }
}

TEST(Limits, ALayerOutsideTheRangesHasTheFloorAndTheTotal) {
  const Limits limits = limits_of(parse_bounds("1:4,2-3:-8,4:2-"), 6, 40, 1);
  EXPECT_THAT(limits.least, ElementsAre(1, 4, 1, 1, 2, 1));
  EXPECT_THAT(limits.most, ElementsAre(40, 4, 8, 8, 40, 40));
  EXPECT_TRUE(limits_of({}, 6, 40, 1).empty());
}

TEST(Limits, BoundsThatDoNotFitTheRunAreRefusedWithTheValues) {
  const auto expect_refused = [](const char* bounds, const auto& names) {
    EXPECT_THAT([&] { limits_of(parse_bounds(bounds), 4, 40, 2); }, ThrowsMessage<InvalidArgument>(names))
        << bounds;
  };
  expect_refused("4:3", Names("4:3", "layers 4 to 4", 0, 3));
  expect_refused("3-2:3", Names("3-2:3", "layers 3 to 2"));
  expect_refused("0:9-4", Names("0:9-4", 9, 4));
  expect_refused("0:1-4", Names("0:1-4", "floor", 2));
  expect_refused("0:-1", Names("0:-1", "floor", 2));
  expect_refused("0-2:3-,2:5", Names("layer 2", "twice", "0-2:3-,2:5"));
  expect_refused("0-3:-9", Names("0-3:-9", 8, 36, 40));
  expect_refused("0-3:11-", Names("0-3:11-", 44, 160, 40));
  expect_refused("0:exact,1-3:-13", Names("0:exact,1-3:-13", "3 layers", 39, 40));
  expect_refused("0-3:exact", Names("0-3:exact", "4 layers"));
  expect_refused("4:exact", Names("4:exact", "layers 4 to 4", 0, 3));
  expect_refused("0-2:exact,2:5", Names("layer 2", "twice"));
  EXPECT_NO_THROW(limits_of(parse_bounds("0-3:10"), 4, 40, 2));
}

TEST(Totals, AreWhatTheLayersThatSampleMayHave) {
  const Totals open = totals_within(parse_bounds("0:exact,1:4,2:-6"), 5, 2);
  EXPECT_EQ(open.least, 4 + 2 + 2 + 2);
  EXPECT_FALSE(open.most.has_value());
  const Totals closed = totals_within(parse_bounds("0:exact,1:4,2-4:3-6"), 5, 2);
  EXPECT_EQ(closed.least, 4 + 3 * 3);
  EXPECT_EQ(closed.most, 4 + 3 * 6);
  EXPECT_EQ(totals_within({}, 5, 2).least, 10);
  EXPECT_THROW(totals_within(parse_bounds("5:1"), 5, 1), InvalidArgument);
  EXPECT_THROW(totals_within(parse_bounds("0-4:exact"), 5, 1), InvalidArgument);
}

TEST(Limits, AScheduleOutsideIsNamedWithItsLayer) {
  const Limits limits = limits_of(parse_bounds("1:4-6"), 3, 20, 1);
  EXPECT_NO_THROW(check_limits(parse_schedule("10,4,6"), limits));
  EXPECT_THAT([&] { check_limits(parse_schedule("10,7,3"), limits); },
              ThrowsMessage<InvalidArgument>(Names("10,7,3", "layer 1", 7, 4, 6)));
}

// Bounds around a schedule of that total, so that there is one within them.
Limits random_limits(std::mt19937_64& random, int layers, int64_t total, int32_t floor) {
  const auto below = [&](int32_t bound) { return std::uniform_int_distribution<int32_t>(0, bound)(random); };
  std::vector<double> shares;
  for (int layer = 0; layer < layers; ++layer) shares.push_back(1 + below(50));
  const Schedule inside = apportion(shares, total, floor);
  Bounds bounds;
  for (int32_t layer = 0; layer < layers; ++layer) {
    const int32_t samples = inside.samples[static_cast<size_t>(layer)];
    Bounds::Range range{.first = layer, .last = layer};
    if (below(2) > 0) range.least = std::max(floor, samples - below(6));
    if (below(2) > 0) range.most = samples + below(6);
    bounds.ranges.push_back(range);
  }
  return limits_of(bounds, layers, total, floor);
}

TEST(BoundedApportionment, KeepsSumAndBoundsWhateverTheShares) {
  std::mt19937_64 random(5);
  int changed = 0;
  for (int round = 0; round < 400; ++round) {
    const int layers = std::uniform_int_distribution<int>(1, 12)(random);
    const int32_t floor = std::uniform_int_distribution<int32_t>(0, 3)(random);
    const int64_t total = 1 + layers * floor + std::uniform_int_distribution<int64_t>(0, 200)(random);
    const Limits limits = random_limits(random, layers, total, floor);
    std::vector<double> shares;
    for (int layer = 0; layer < layers; ++layer) {
      const double draw = std::uniform_real_distribution<double>(0, 1)(random);
      shares.push_back(draw < 0.3 ? 0 : std::pow(draw, 8));
    }
    shares.front() += 1e-3;
    const Schedule schedule = apportion(shares, total, floor, limits);
    ASSERT_NO_THROW(check_schedule(schedule, layers, floor, total)) << "round " << round;
    ASSERT_NO_THROW(check_limits(schedule, limits)) << "round " << round;
    const Schedule free = apportion(shares, total, floor);
    changed += schedule != free;
    if (limits.keeps(free)) {
      ASSERT_EQ(schedule, free);
    }
    ASSERT_EQ(kept(schedule, floor, limits), schedule);
  }
  EXPECT_GT(changed, 200);
}

TEST(BoundedApportionment, WhatACapLeavesGoesToTheOthersByTheirShares) {
  const Limits limits = limits_of(parse_bounds("0:-10,3:1"), 4, 40, 0);
  EXPECT_THAT(apportion(std::vector<double>{6, 2, 1, 1}, 40, 0, limits).samples, ElementsAre(10, 19, 10, 1));
  // Where all that has a share is at its cap, the others get the rest.
  const Limits caps = limits_of(parse_bounds("0:-4"), 3, 12, 0);
  EXPECT_THAT(apportion(std::vector<double>{1, 0, 0}, 12, 0, caps).samples, ElementsAre(4, 4, 4));
}

TEST(BoundedAllocation, IsTheCheapestScheduleWithinTheBounds) {
  std::mt19937_64 random(9);
  for (int round = 0; round < 60; ++round) {
    constexpr int kLayers = 3, kTotal = 14;
    std::vector<double> costs;
    for (int k = 0; k < kLayers * (kTotal + 1); ++k)
      costs.push_back(std::uniform_real_distribution<double>(0, 1)(random));
    const int32_t floor = round % 2;
    const Limits limits = random_limits(random, kLayers, kTotal, floor);
    const auto cost_of = [&](const Schedule& schedule) {
      double sum = 0;
      for (size_t layer = 0; layer < kLayers; ++layer)
        sum += costs[layer * (kTotal + 1) + static_cast<size_t>(schedule.samples[layer])];
      return sum;
    };
    double least = std::numeric_limits<double>::infinity();
    for (int32_t a = floor; a <= kTotal; ++a) {
      for (int32_t b = floor; a + b + floor <= kTotal; ++b) {
        const Schedule one{{a, b, kTotal - a - b}};
        if (limits.keeps(one)) least = std::min(least, cost_of(one));
      }
    }
    const Schedule found = cheapest_schedule(costs, kLayers, kTotal, floor, limits);
    ASSERT_NO_THROW(check_schedule(found, kLayers, floor, kTotal));
    ASSERT_NO_THROW(check_limits(found, limits));
    ASSERT_NEAR(cost_of(found), least, 1e-12) << "round " << round;
  }
}

// In lots of several samples, of which a narrow layer has no room for one.
TEST(BoundedAllocation, KeepsTotalAndBoundsWhereSamplesAreDealtInLots) {
  constexpr int kLayers = 4, kTotal = 3000;
  std::vector<double> costs;
  for (int layer = 0; layer < kLayers; ++layer)
    for (int samples = 0; samples <= kTotal; ++samples) costs.push_back((layer + 1.0) / (samples + 1));
  for (const char* bounds : {"3:4,0:-700", "0-2:747-749,3:755-", "0-2:-751", "0-3:750"}) {
    const Limits limits = limits_of(parse_bounds(bounds), kLayers, kTotal, 1);
    const Schedule found = cheapest_schedule(costs, kLayers, kTotal, 1, limits);
    EXPECT_NO_THROW(check_schedule(found, kLayers, 1, kTotal)) << bounds;
    EXPECT_NO_THROW(check_limits(found, limits)) << bounds;
  }
}

}  // namespace
}  // namespace allot::policy
