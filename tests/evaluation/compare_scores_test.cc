// Statistics of scores, with partial credit and without.
#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <vector>

#include "base/error.h"
#include "base/philox.h"
#include "evaluation/statistics.h"

namespace allot::evaluation {
namespace {

// Uniform draws in [0, 1).
std::vector<double> uniform(size_t count, uint32_t seed) {
  std::vector<double> values;
  for (uint32_t i = 0; i < count; ++i)
    values.push_back(philox4x32_10({{i, 0, 0, 0}}, seed, 77).word[0] / 4294967296.0);
  return values;
}

TEST(CompareScores, RightAndWrongAnswersAreComparedAsTheyAlwaysWere) {
  std::vector<double> first(200), second(200);
  for (size_t i = 0; i < 200; ++i) first[i] = i % 3 == 0, second[i] = i % 4 == 0;
  const PairedTest test = compare_scores(first, second);
  std::vector<uint8_t> a(first.begin(), first.end()), b(second.begin(), second.end());
  const Pairs pairs = count_pairs(a, b);
  EXPECT_FALSE(test.graded);
  EXPECT_EQ(test.pairs.only_first, pairs.only_first);
  EXPECT_EQ(test.pairs.only_second, pairs.only_second);
  EXPECT_EQ(test.difference, pairs.difference());
  EXPECT_EQ(test.p_value, mcnemar_exact(pairs.only_first, pairs.only_second));
  EXPECT_EQ(test.interval, paired_difference_interval(pairs.only_first, pairs.only_second, 200));
}

TEST(CompareScores, APermutationTestOfFewQuestionsGivesTheShareOfSignsByHand) {
  // Differences 0.5, 0.25, 0.125 of one sign: of the 8 assignments of signs 2 are as far from 0.
  const std::vector<double> first = {0.5, 0.75, 0.625}, second = {0, 0.5, 0.5};
  const PairedTest test = compare_scores(first, second);
  EXPECT_TRUE(test.graded);
  EXPECT_DOUBLE_EQ(test.difference, 0.875 / 3);
  EXPECT_NEAR(test.p_value, 0.25, 3.9 * std::sqrt(0.25 * 0.75 / 10'000));
  // +0.5 and -0.25: each of the 4 assignments is at least as far as 0.25.
  EXPECT_EQ(compare_scores(std::vector{0.5, 0.0}, std::vector{0.0, 0.25}).p_value, 1);
}

TEST(CompareScores, PValuesOfEqualSchedulesAreUniform) {
  int below = 0;
  for (uint32_t trial = 0; trial < 100; ++trial)
    below += compare_scores(uniform(40, 2 * trial), uniform(40, 2 * trial + 1)).p_value < 0.2;
  // Binomial(100, 0.2): mean 20, deviation 4.
  EXPECT_GT(below, 6);
  EXPECT_LT(below, 34);
}

TEST(CompareScores, TheIntervalIsThatOfTheNormalDistributionForManyQuestions) {
  const std::vector<double> first = uniform(1000, 1), second = uniform(1000, 2);
  double mean = 0, squares = 0;
  for (size_t i = 0; i < 1000; ++i) mean += (first[i] - second[i]) / 1000;
  for (size_t i = 0; i < 1000; ++i) squares += std::pow(first[i] - second[i] - mean, 2);
  const double half = 1.96 * std::sqrt(squares / 999 / 1000);
  const PairedTest test = compare_scores(first, second);
  EXPECT_NEAR(test.difference, mean, 1e-12);
  EXPECT_NEAR(test.interval.low, mean - half, 0.1 * half);
  EXPECT_NEAR(test.interval.high, mean + half, 0.1 * half);
}

TEST(CompareScores, AClearDifferenceIsFoundAndItsSignKept) {
  std::vector<double> better = uniform(200, 3), worse = better;
  for (double& score : worse) score *= 0.7;
  const PairedTest test = compare_scores(worse, better);
  EXPECT_LT(test.difference, 0);
  EXPECT_LT(test.interval.high, 0);
  EXPECT_LT(test.p_value, 0.001);
  EXPECT_EQ(test.pairs.only_second, 200);
}

TEST(CompareScores, ASeedGivesTheSameNumbersAgainAndAnotherSeedOthers) {
  const std::vector<double> first = uniform(50, 5), second = uniform(50, 6);
  const PairedTest one = compare_scores(first, second, 1);
  EXPECT_EQ(one.interval, compare_scores(first, second, 1).interval);
  EXPECT_EQ(one.p_value, compare_scores(first, second, 1).p_value);
  EXPECT_NE(one.interval, compare_scores(first, second, 2).interval);
}

TEST(CompareScores, ScoresOfDifferentQuestionsAndThoseThatAreNoNumbersAreRefused) {
  const std::vector<double> two = {1, 0.5}, one = {1};
  EXPECT_THROW((void)compare_scores(two, one), InvalidArgument);
  const std::vector<double> broken = {1, std::numeric_limits<double>::quiet_NaN()};
  EXPECT_THROW((void)compare_scores(two, broken), InvalidArgument);
  EXPECT_THROW((void)mean_of_scores(broken), InvalidArgument);
}

TEST(CompareScores, WithoutQuestionsNothingIsKnown) {
  const PairedTest test = compare_scores({}, {});
  EXPECT_EQ(test.p_value, 1);
  EXPECT_EQ(test.interval, (Interval{-1, 1}));
  EXPECT_EQ(mean_of_scores({}).interval, (Interval{0, 1}));
}

TEST(MeanOfScores, RightAndWrongAnswersHaveWilsonsInterval) {
  const std::vector<double> scores = {1, 0, 1, 1};
  EXPECT_EQ(mean_of_scores(scores).mean, 0.75);
  EXPECT_EQ(mean_of_scores(scores).interval, wilson_interval(3, 4));
}

TEST(MeanOfScores, PartialCreditHasTheBootstrapsInterval) {
  const std::vector<double> scores = uniform(1000, 9);
  const MeanScore score = mean_of_scores(scores);
  const double half = 1.96 * std::sqrt(1.0 / 12 / 1000);
  EXPECT_NEAR(score.interval.low, score.mean - half, 0.1 * half);
  EXPECT_NEAR(score.interval.high, score.mean + half, 0.1 * half);
}

}  // namespace
}  // namespace allot::evaluation
