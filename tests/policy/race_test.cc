#include "policy/race.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/json.h"

namespace allot::policy {
namespace {

Race example() {
  return {parse_schedule("8,8"), parse_schedule("12,4")};
}

TEST(Race, TakesTheDifferenceOfTheTwoOnEachGroupOfQuestionsInAnyOrder) {
  Race race = example();
  EXPECT_EQ(race.error(), std::numeric_limits<double>::infinity());
  race.tell(1, Race::Side::kIncumbent, 0.5);
  race.tell(2, Race::Side::kChallenger, 0.25);
  race.tell(3, Race::Side::kChallenger, 1);
  EXPECT_EQ(race.pairs(), 0);
  race.tell(2, Race::Side::kIncumbent, 0.125);
  race.tell(1, Race::Side::kChallenger, 0.875);
  EXPECT_EQ(race.pairs(), 2);
  EXPECT_DOUBLE_EQ(race.mean(), (0.375 + 0.125) / 2);
  // Differences of 0.375 and 0.125: deviation 0.125 * sqrt(2), of the mean of two 0.125.
  EXPECT_DOUBLE_EQ(race.error(), 0.125);
  EXPECT_DOUBLE_EQ(race.evidence(2), 2);
  EXPECT_EQ(race.evidence(3), 0);
}

TEST(Race, SaysNothingWhereNoPairDiffers) {
  Race race = example();
  for (int64_t group = 0; group < 20; ++group) {
    race.tell(group, Race::Side::kIncumbent, 0.5);
    race.tell(group, Race::Side::kChallenger, 0.5);
  }
  EXPECT_EQ(race.pairs(), 20);
  EXPECT_EQ(race.evidence(2), 0);
}

TEST(Race, GoesOnAsItWasAfterItWasSaved) {
  Race race = example();
  race.tell(1, Race::Side::kIncumbent, 0.1);
  race.tell(1, Race::Side::kChallenger, 0.3);
  race.tell(2, Race::Side::kChallenger, 1.0 / 3);
  Race restored(race.save());
  for (Race* one : {&race, &restored}) one->tell(2, Race::Side::kIncumbent, 0.2);
  EXPECT_EQ(restored.save(), race.save());
  EXPECT_EQ(restored.pairs(), 2);
  EXPECT_EQ(restored.challenger(), parse_schedule("12,4"));
  nlohmann::json damaged = race.save();
  damaged["halves"] = {{1, 2, 0.5}};
  EXPECT_THROW(Race{damaged}, CorruptFile);
}

}  // namespace
}  // namespace allot::policy
