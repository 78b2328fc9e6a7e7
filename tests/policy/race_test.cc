#include "policy/race.h"

#include <gmock/gmock.h>

#include <cmath>

#include "base/json.h"

namespace allot::policy {
namespace {

constexpr double kUnknown = -50;  // and below: too few pairs

TEST(Race, SaysNothingBeforeFourPairs) {
  Race race;
  for (int64_t group = 0; group < 3; ++group) {
    race.tell(group, 0, 0.1);
    race.tell(group, 1, 0.9);
    EXPECT_LT(race.second_lead(), kUnknown) << group;
  }
  race.tell(3, 1, 0.9);
  EXPECT_LT(race.second_lead(), kUnknown) << "half a pair";
  race.tell(3, 0, 0.1);
  EXPECT_GT(race.second_lead(), 10);
}

TEST(Race, ItIsTheSameWhicheverHalfComesFirst) {
  Race in_order;
  Race crossed;
  for (int64_t group = 0; group < 8; ++group) {
    const double first = 0.4;
    const double second = group % 2 == 0 ? 0.7 : 0.3;
    in_order.tell(group, 0, first);
    in_order.tell(group, 1, second);
    crossed.tell(group, 1, second);
    crossed.tell(group, 0, first);
  }
  EXPECT_EQ(in_order.second_lead(), crossed.second_lead());
  // A mean of 0.1 and a deviation of 0.2, but for the fading.
  EXPECT_NEAR(in_order.second_lead(), 0.1 / (0.2 / std::sqrt(8)), 0.3);
}

TEST(Race, APairWithALostHalfCountsNothing) {
  Race race;
  for (int64_t group = 0; group < 8; ++group) {
    race.tell(group, 0, group % 2 == 0 ? std::optional(0.9) : std::nullopt);
    race.tell(group, 1, group % 2 == 0 ? std::nullopt : std::optional(0.1));
  }
  EXPECT_LT(race.second_lead(), kUnknown);
  EXPECT_TRUE(race.save().at("halves").empty());
}

TEST(Race, FollowsCandidatesThatChange) {
  Race race;
  int64_t group = 0;
  for (; group < 40; ++group) {
    race.tell(group, 0, 0.5);
    race.tell(group, 1, 0.3);
  }
  EXPECT_LT(race.second_lead(), -5);
  for (; group < 120; ++group) {
    race.tell(group, 0, 0.5);
    race.tell(group, 1, 0.7);
  }
  EXPECT_GT(race.second_lead(), 5);
}

TEST(Race, RestoredItGoesOnAlike) {
  Race race;
  for (int64_t group = 0; group < 6; ++group) {
    race.tell(group, 0, 0.25 + 0.01 * static_cast<double>(group));
    if (group < 5) race.tell(group, 1, 0.5);
  }
  Race other;
  other.restore(race.save());
  EXPECT_EQ(other.save(), race.save());
  race.tell(5, 1, 0.4);
  other.tell(5, 1, 0.4);
  EXPECT_EQ(other.second_lead(), race.second_lead());
}

}  // namespace
}  // namespace allot::policy
