#include "evaluation/detectable.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "base/error.h"
#include "evaluation/statistics.h"

namespace allot::evaluation {
namespace {

// How often the test itself finds the better schedule, in `repeats` comparisons drawn at random.
double simulated_power(int64_t questions, double telling, double difference, int repeats) {
  std::mt19937_64 random(7);
  std::uniform_real_distribution<double> uniform;
  int found = 0;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    int64_t wins = 0, losses = 0;
    for (int64_t question = 0; question < questions; ++question) {
      const double at = uniform(random);
      wins += at < (telling + difference) / 2;
      losses += at >= (telling + difference) / 2 && at < telling;
    }
    found += wins > losses && mcnemar_exact(wins, losses) < 0.05;
  }
  return static_cast<double>(found) / repeats;
}

TEST(PowerOfPairedTest, IsHowOftenTheTestFindsTheDifference) {
  constexpr int kRepeats = 4000;
  for (const auto& [questions, telling, difference] :
       {std::tuple(64, 0.3, 0.2), {256, 0.2, 0.08}, {256, 0.4, 0.08}, {1000, 0.1, 0.02}, {40, 0.5, 0.5}}) {
    const double power = power_of_paired_test(questions, telling, difference);
    const double deviation = std::sqrt(power * (1 - power) / kRepeats);
    EXPECT_NEAR(simulated_power(questions, telling, difference, kRepeats), power, 4 * deviation + 1e-9)
        << questions << ' ' << telling << ' ' << difference;
  }
}

// With no difference one side or the other is found better in at most 5 % of all comparisons, so each in 2.5
// %.
TEST(PowerOfPairedTest, IsAtMostHalfTheSignificanceWithoutADifference) {
  for (const int64_t questions : {10, 100, 1000}) EXPECT_LE(power_of_paired_test(questions, 0.3, 0), 0.025);
  EXPECT_GT(power_of_paired_test(1000, 0.3, 0), 0.015);
}

// Six questions that all tell and all say the same are the fewest that can convince: 2 / 2^6 is below 5 %.
TEST(PowerOfPairedTest, NeedsSixQuestions) {
  EXPECT_EQ(power_of_paired_test(5, 1, 1), 0);
  EXPECT_DOUBLE_EQ(power_of_paired_test(6, 1, 1), 1);
  EXPECT_EQ(power_of_paired_test(0, 0.5, 0.5), 0);
  EXPECT_EQ(power_of_paired_test(100, 0, 0), 0);
}

TEST(DetectableDifference, IsFoundInFourOfFiveComparisons) {
  for (const int64_t questions : {100, 256, 1319}) {
    const auto difference = detectable_difference(questions, 0.25);
    ASSERT_TRUE(difference);
    EXPECT_GE(power_of_paired_test(questions, 0.25, *difference), 0.8);
    EXPECT_LT(power_of_paired_test(questions, 0.25, *difference - 2e-4), 0.8);
  }
  // The rule of thumb 2.8 sqrt(telling / questions): 2.80 points of 1,319 questions with a share of 0.132.
  EXPECT_NEAR(*detectable_difference(1319, 0.132), 0.028, 0.002);
}

TEST(DetectableDifference, IsNoneWhereTooFewQuestionsTell) {
  EXPECT_EQ(detectable_difference(100, 0.02), std::nullopt);
  EXPECT_EQ(detectable_difference(0, 1), std::nullopt);
}

TEST(PowerOfPairedTest, RefusesImpossibleShares) {
  EXPECT_THROW(power_of_paired_test(10, 0.2, 0.3), InvalidArgument);
  EXPECT_THROW(power_of_paired_test(10, 1.2, 0.3), InvalidArgument);
  EXPECT_THROW(power_of_paired_test(-1, 0.2, 0.1), InvalidArgument);
  EXPECT_THROW(power_of_paired_test(10, 0.2, std::nan("")), InvalidArgument);
}

}  // namespace
}  // namespace allot::evaluation
