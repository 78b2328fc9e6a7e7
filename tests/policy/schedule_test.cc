#include "policy/schedule.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <random>

#include "base/error.h"
#include "tests/names.h"

namespace allot::policy {
namespace {

using ::testing::ElementsAre;
using ::testing::ThrowsMessage;

TEST(Schedule, ParsesWhatItPrintsAndAllowsBlanksAroundEntries) {
  const Schedule schedule = parse_schedule(" 33,8, 7 ,3,4,2,3,4\n");
  EXPECT_THAT(schedule.samples, ElementsAre(33, 8, 7, 3, 4, 2, 3, 4));
  EXPECT_EQ(schedule.total(), 64);
  EXPECT_EQ(schedule.to_string(), "33,8,7,3,4,2,3,4");
  EXPECT_EQ(parse_schedule(schedule.to_string()), schedule);
}

TEST(Schedule, ExactLayersAreParsedAndPrintedAndAreInNoTotal) {
  const Schedule schedule = parse_schedule("exact, 8,exact ,0");
  EXPECT_THAT(schedule.samples, ElementsAre(kExactLayer, 8, kExactLayer, 0));
  EXPECT_EQ(schedule.total(), 8);
  EXPECT_EQ(schedule.to_string(), "exact,8,exact,0");
  EXPECT_EQ(parse_schedule(schedule.to_string()), schedule);
}

TEST(Schedule, AnExactLayerIsBelowNoFloor) {
  const Schedule schedule = parse_schedule("exact,3,5");
  EXPECT_NO_THROW(check_schedule(schedule, 3, 3, 8));
  EXPECT_THAT([&] { check_schedule(schedule, 3, 4); },
              ThrowsMessage<InvalidArgument>(Names("exact,3,5", "layer 1", 3, "floor", 4)));
}

TEST(Schedule, ParseNamesTheBadEntryAndItsLayer) {
  const auto expect_rejected = [](const char* text, const char* layer, const char* entry) {
    EXPECT_THAT([&] { parse_schedule(text); }, ThrowsMessage<InvalidArgument>(Names(layer, entry))) << text;
  };
  expect_rejected("", "layer 0", "''");
  expect_rejected("1,2,", "layer 2", "''");
  expect_rejected("1,,2", "layer 1", "''");
  expect_rejected("1,x,2", "layer 1", "'x'");
  expect_rejected("1,2.5", "layer 1", "'2.5'");
  expect_rejected("-1,2", "layer 0", "'-1'");
  expect_rejected("+1,2", "layer 0", "'+1'");
  expect_rejected("1,2147483648", "layer 1", "'2147483648'");
  expect_rejected("1 2,3", "layer 0", "'1 2'");
  expect_rejected("1,exactly", "layer 1", "'exactly'");
  expect_rejected("Exact,1", "layer 0", "'Exact'");
}

TEST(Schedule, TotalDoesNotOverflow) {
  EXPECT_EQ(parse_schedule("2147483647,2147483647").total(), int64_t{4294967294});
}

TEST(Schedule, OfAPromptIsThatOfTheFirstBandWhichHoldsIt) {
  const std::vector<ScheduleBand> bands = {{.most_tokens = 10, .schedule = {{1, 2}}},
                                           {.most_tokens = 20, .schedule = {{3, 4}}}};
  const Schedule beyond{{5, 6}};
  EXPECT_EQ(schedule_of_prompt(bands, beyond, 1), bands[0].schedule);
  EXPECT_EQ(schedule_of_prompt(bands, beyond, 10), bands[0].schedule);
  EXPECT_EQ(schedule_of_prompt(bands, beyond, 11), bands[1].schedule);
  EXPECT_EQ(schedule_of_prompt(bands, beyond, 20), bands[1].schedule);
  EXPECT_EQ(schedule_of_prompt(bands, beyond, 21), beyond);
  EXPECT_EQ(schedule_of_prompt({}, beyond, 1), beyond);
}

TEST(Schedule, CheckNamesLengthFloorAndSum) {
  const Schedule schedule = parse_schedule("3,0,5");
  EXPECT_NO_THROW(check_schedule(schedule, 3, 0, 8));
  EXPECT_NO_THROW(check_schedule(schedule, 3, 0));
  EXPECT_THAT([&] { check_schedule(schedule, 4, 0); },
              ThrowsMessage<InvalidArgument>(Names("3 entries", "4 layers")));
  EXPECT_THAT([&] { check_schedule(schedule, 3, 1); },
              ThrowsMessage<InvalidArgument>(Names("layer 1", 0, "floor", 1)));
  EXPECT_THAT([&] { check_schedule(schedule, 3, 0, 9); },
              ThrowsMessage<InvalidArgument>(Names(8, "budget", 9)));
}

TEST(EvenSchedule, OfAnotherKeepsItsTotalAndItsExactLayers) {
  EXPECT_EQ(even_schedule(parse_schedule("exact,9,0,exact,1")), parse_schedule("exact,4,3,exact,3"));
  EXPECT_EQ(even_schedule(parse_schedule("33,8,7")), even_schedule(3, 48, 0));
  EXPECT_THROW((void)even_schedule(parse_schedule("exact,exact")), InvalidArgument);
}

TEST(Apportion, SharesOutByLargestRemainder) {
  EXPECT_THAT(apportion(std::vector{0.5, 0.3, 0.2}, 10, 0).samples, ElementsAre(5, 3, 2));
  EXPECT_THAT(apportion(std::vector{47.0, 16.0, 15.8, 12.0, 6.1, 3.1}, 10, 0).samples,
              ElementsAre(5, 2, 1, 1, 1, 0));
  EXPECT_THAT(apportion(std::vector{1.0, 3.0}, 10, 1).samples, ElementsAre(3, 7));
}

TEST(Apportion, GivesTiesToTheLowerLayer) {
  EXPECT_THAT(apportion(std::vector{1.0, 1.0, 1.0}, 4, 0).samples, ElementsAre(2, 1, 1));
  EXPECT_THAT(apportion(std::vector{1.0, 1.0, 1.0, 1.0}, 10, 1).samples, ElementsAre(3, 3, 2, 2));
}

TEST(Apportion, KeepsSumFloorAndQuotaWithinOneForAnyShares) {
  std::mt19937_64 random(11);
  for (int round = 0; round < 2000; ++round) {
    const int layers = std::uniform_int_distribution<int>(1, 40)(random);
    const int32_t floor = std::uniform_int_distribution<int32_t>(0, 3)(random);
    const int64_t total = int64_t{layers} * floor + std::uniform_int_distribution<int64_t>(0, 1000)(random);
    std::vector<double> shares(static_cast<size_t>(layers));
    for (double& share : shares) share = std::exp(std::normal_distribution<>(0, 0.5 + round % 7)(random));
    if (round % 3 == 0) shares[0] = 0;
    if (layers == 1) shares[0] = 1;
    const Schedule schedule = apportion(shares, total, floor);
    ASSERT_NO_THROW(check_schedule(schedule, layers, floor, total)) << "round " << round;
    const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
    for (size_t layer = 0; layer < shares.size(); ++layer) {
      const double quota = floor + static_cast<double>(total - layers * floor) * shares[layer] / sum;
      ASSERT_LT(std::abs(schedule.samples[layer] - quota), 1 + 1e-9)
          << "round " << round << " layer " << layer;
    }
  }
}

// Against the definition: all layers sorted by their remainders. Shares that are small whole numbers make
// ties.
TEST(Apportion, RoundsUpTheLargestRemaindersAndAmongEqualOnesTheEarlierLayers) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 5000; ++round) {
    const auto layers = std::uniform_int_distribution<size_t>(1, 40)(random);
    const int64_t total = std::uniform_int_distribution<int64_t>(0, 300)(random);
    std::vector<double> shares(layers);
    for (double& share : shares) {
      share = round % 2 == 0 ? std::uniform_int_distribution<int>(1, 1 + round % 9)(random)
                             : std::uniform_real_distribution<>(0.01, 1)(random);
    }
    const double largest = *std::ranges::max_element(shares);
    double sum = 0;
    for (const double share : shares) sum += share / largest;
    std::vector<int32_t> expected(layers);
    std::vector<double> remainders(layers);
    std::vector<size_t> order(layers);
    int64_t left = total;
    for (size_t layer = 0; layer < layers; ++layer) {
      const double quota = static_cast<double>(total) * (shares[layer] / largest / sum);
      expected[layer] = static_cast<int32_t>(quota);
      remainders[layer] = quota - expected[layer];
      order[layer] = layer;
      left -= expected[layer];
    }
    std::ranges::stable_sort(order, std::ranges::greater{}, [&](size_t layer) { return remainders[layer]; });
    for (int64_t place = 0; place < left; ++place) ++expected[order[static_cast<size_t>(place)]];
    ASSERT_EQ(apportion(shares, total, 0).samples, expected) << "round " << round;
  }
}

TEST(Apportion, SurvivesSharesAtTheEdgeOfTheNumberRange) {
  const double huge = std::numeric_limits<double>::max();
  EXPECT_THAT(apportion(std::vector{huge, huge}, 10, 0).samples, ElementsAre(5, 5));
  EXPECT_THAT(apportion(std::vector{huge, std::numeric_limits<double>::denorm_min()}, 10, 1).samples,
              ElementsAre(9, 1));
  EXPECT_THAT(apportion(std::vector{1.0}, 2147483647, 0).samples, ElementsAre(2147483647));
}

TEST(Apportion, RefusesWhatItCannotShareOut) {
  const auto expect_refused = [](std::vector<double> shares, int64_t total, int32_t floor,
                                 const NamesMatcher& names) {
    EXPECT_THAT([&] { apportion(shares, total, floor); }, ThrowsMessage<InvalidArgument>(names));
  };
  expect_refused({1, 1, 1}, 2, 1, Names("total", 2, 3, "floor", 1));
  expect_refused({1, 1}, 4, -1, Names("floor", -1));
  expect_refused({1, 1}, int64_t{1} << 31, 0, Names(2147483648));
  expect_refused({1, -0.5}, 4, 0, Names("share", "layer 1", "-0.500000"));
  expect_refused({std::nan(""), 1}, 4, 0, Names("share", "layer 0", "nan"));
  expect_refused({1, HUGE_VAL}, 4, 0, Names("share", "layer 1", "inf"));
  expect_refused({0, 0}, 4, 0, Names("shares", 2, 0));
}

TEST(EvenSchedule, SpreadsTheTotalWithTheRestInTheLowerLayers) {
  EXPECT_THAT(even_schedule(4, 8, 1).samples, ElementsAre(2, 2, 2, 2));
  EXPECT_THAT(even_schedule(4, 10, 1).samples, ElementsAre(3, 3, 2, 2));
  EXPECT_THAT(even_schedule(3, 2, 0).samples, ElementsAre(1, 1, 0));
  EXPECT_THAT(even_schedule(1, 7, 7).samples, ElementsAre(7));
}

TEST(EvenSchedule, IsTheSameUnderEveryFloorThatFits) {
  for (int layers = 1; layers <= 40; ++layers) {
    for (const int64_t total : {layers * 3, layers * 3 + 1, layers * 4 - 1, layers * 200 + 7}) {
      const Schedule schedule = even_schedule(layers, total, 0);
      const auto [least, most] = std::ranges::minmax_element(schedule.samples);
      ASSERT_LE(*most - *least, 1) << layers << " layers, " << total;
      ASSERT_TRUE(std::ranges::is_sorted(schedule.samples, std::greater()));
      for (const int32_t floor : {0, 1, 3})
        ASSERT_NO_THROW(check_schedule(even_schedule(layers, total, floor), layers, floor, total));
      ASSERT_EQ(even_schedule(layers, total, 3), schedule) << layers << " layers, " << total;
    }
  }
}

TEST(EvenSchedule, RefusesNoLayersAndATotalBelowTheFloor) {
  EXPECT_THROW(even_schedule(0, 8, 0), InvalidArgument);
  EXPECT_THROW(even_schedule(-1, 8, 0), InvalidArgument);
  EXPECT_THROW(even_schedule(3, 2, 1), InvalidArgument);
}

}  // namespace
}  // namespace allot::policy
