#include "evaluation/statistics.h"

#include <gtest/gtest.h>

#include <random>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "base/error.h"

namespace allot::evaluation {
namespace {

struct WilsonCase {
  int64_t correct, questions;
  double low, high;
};

TEST(WilsonInterval, HasThePublishedValues) {
  // Newcombe, "Two-sided confidence intervals for the single proportion: comparison of seven methods",
  // Statistics in Medicine 17 (1998), Table I, method 3; four decimals.
  for (const auto& [correct, questions, low, high] : {WilsonCase{81, 263, 0.2553, 0.3662},
                                                      {15, 148, 0.0624, 0.1605},
                                                      {0, 20, 0.0000, 0.1611},
                                                      {1, 29, 0.0061, 0.1718}}) {
    const Interval interval = wilson_interval(correct, questions);
    EXPECT_NEAR(interval.low, low, 5e-5) << correct << " of " << questions;
    EXPECT_NEAR(interval.high, high, 5e-5) << correct << " of " << questions;
  }
}

TEST(WilsonInterval, SolvesItsDefiningEquation) {
  // Roots of (correct/n - p)^2 = z^2 p (1 - p) / n, solved as a quadratic in 40-digit decimals (Python
  // decimal).
  for (const auto& [correct, questions, low, high] :
       {WilsonCase{7, 10, 0.3967781474611453, 0.8922087325936989},
        {872, 1319, 0.6351276448438462, 0.6861504623443615},
        {50, 100, 0.4038315303659956, 0.5961684696340044},
        {0, 10, 0.0, 0.27753279986288926},
        {10, 10, 0.7224672001371107, 1.0}}) {
    const Interval interval = wilson_interval(correct, questions);
    EXPECT_NEAR(interval.low, low, 1e-14);
    EXPECT_NEAR(interval.high, high, 1e-14);
  }
}

TEST(WilsonInterval, SaysNothingWithoutQuestions) {
  EXPECT_EQ(wilson_interval(0, 0), (Interval{0, 1}));
}

TEST(StandardError, IsThatOfAProportion) {
  EXPECT_DOUBLE_EQ(standard_error(50, 100), 0.05);
  EXPECT_DOUBLE_EQ(standard_error(20, 100), 0.04);
  EXPECT_EQ(standard_error(0, 100), 0);
  EXPECT_EQ(standard_error(0, 0), 0);
}

TEST(McnemarExact, HasTheExactBinomialValues) {
  // 2 sum_{i <= min} C(n, i) / 2^n in exact fractions (Python fractions), at most 1.
  EXPECT_EQ(mcnemar_exact(0, 0), 1);
  EXPECT_EQ(mcnemar_exact(1, 0), 1);
  EXPECT_EQ(mcnemar_exact(5, 5), 1);
  EXPECT_NEAR(mcnemar_exact(9, 2), 0.0654296875, 1e-15);
  EXPECT_NEAR(mcnemar_exact(0, 10), 0.001953125, 1e-16);
  EXPECT_NEAR(mcnemar_exact(25, 10), 0.01667384780012071, 1e-15);
  EXPECT_NEAR(mcnemar_exact(59, 121) / 4.434449263755176e-06, 1, 1e-10);
  EXPECT_NEAR(mcnemar_exact(400, 100) / 1.6596294752173932e-43, 1, 1e-9);
}

TEST(McnemarExact, DoesNotCareWhichScheduleIsFirst) {
  EXPECT_EQ(mcnemar_exact(9, 2), mcnemar_exact(2, 9));
}

// P(difference = k - questions) of the bootstrap, by convolving one question after another.
std::vector<double> bootstrap_distribution(int64_t only_first, int64_t only_second, int64_t questions) {
  const double up = static_cast<double>(only_first) / static_cast<double>(questions);
  const double down = static_cast<double>(only_second) / static_cast<double>(questions);
  std::vector<double> probability(static_cast<size_t>(2 * questions + 1), 0.0);
  probability[static_cast<size_t>(questions)] = 1;
  for (int64_t i = 0; i < questions; ++i) {
    std::vector<double> next(probability.size(), 0.0);
    for (size_t k = 1; k + 1 < probability.size(); ++k) {
      next[k] += probability[k] * (1 - up - down);
      next[k + 1] += probability[k] * up;
      next[k - 1] += probability[k] * down;
    }
    probability = next;
  }
  return probability;
}

TEST(PairedDifferenceInterval, CutsTheBootstrapDistributionAtItsPercentiles) {
  const int64_t questions = 200;
  const std::vector<double> probability = bootstrap_distribution(31, 12, questions);
  const Interval interval = paired_difference_interval(31, 12, questions);
  const auto mass_below = [&](double difference) {
    const auto end = static_cast<size_t>(std::lround(difference * questions) + questions);
    double mass = 0;
    for (size_t k = 0; k < end; ++k) mass += probability[k];
    return mass;
  };
  const double step = 1.0 / questions;
  // With 10,000 resamples the share below a percentile has a standard error of 0.0016.
  EXPECT_LT(mass_below(interval.low), 0.025 + 0.006);
  EXPECT_GT(mass_below(interval.low + step), 0.025 - 0.006);
  EXPECT_LT(mass_below(interval.high), 0.975 + 0.006);
  EXPECT_GT(mass_below(interval.high + step), 0.975 - 0.006);
}

TEST(PairedDifferenceInterval, IsTheDifferenceWhereNothingVaries) {
  EXPECT_EQ(paired_difference_interval(0, 0, 50), (Interval{0, 0}));
  EXPECT_EQ(paired_difference_interval(50, 0, 50), (Interval{1, 1}));
  EXPECT_EQ(paired_difference_interval(0, 50, 50), (Interval{-1, -1}));
  EXPECT_EQ(paired_difference_interval(0, 0, 0), (Interval{-1, 1}));
}

TEST(PairedDifferenceInterval, IsAFunctionOfCountsAndSeed) {
  EXPECT_EQ(paired_difference_interval(31, 12, 200, 7), paired_difference_interval(31, 12, 200, 7));
  bool differs = false;
  for (uint32_t seed = 0; seed < 20 && !differs; ++seed)
    differs =
        !(paired_difference_interval(31, 12, 200, seed) == paired_difference_interval(31, 12, 200, seed + 1));
  EXPECT_TRUE(differs);
}

// The score statistic of a difference, whose chance of "only the second" is looked for on a grid instead of
// by the formula: where the likelihood of the counts is largest.
double score_statistic(int64_t only_first, int64_t only_second, int64_t questions, double difference) {
  const auto n = static_cast<double>(questions);
  const auto b = static_cast<double>(only_first), c = static_cast<double>(only_second);
  double best = -1e300, second = 0;
  constexpr int kSteps = 200'000;
  for (int i = 1; i < kSteps; ++i) {
    const double low = std::max(0.0, -difference), high = std::min(1.0, (1 - difference) / 2);
    const double p = low + (high - low) * i / kSteps;
    const double likelihood =
        b * std::log(p + difference) + c * std::log(p) + (n - b - c) * std::log(1 - 2 * p - difference);
    if (likelihood > best) best = likelihood, second = p;
  }
  return (b - c - n * difference) / std::sqrt(n * (2 * second + difference * (1 - difference)));
}

TEST(PairedScoreInterval, EndsWhereTheScoreTestBeginsToReject) {
  for (const auto& [only_first, only_second, questions] :
       {std::array<int64_t, 3>{12, 2, 50}, {3, 8, 54}, {40, 31, 1000}, {16, 2, 44}}) {
    const Interval interval = paired_score_interval(only_first, only_second, questions);
    EXPECT_NEAR(score_statistic(only_first, only_second, questions, interval.low), 1.959964, 2e-4);
    EXPECT_NEAR(score_statistic(only_first, only_second, questions, interval.high), -1.959964, 2e-4);
  }
}

TEST(PairedScoreInterval, HasAWidthWhereNoQuestionTellsTheTwoApart) {
  constexpr double kSquare = 1.959963984540054 * 1.959963984540054;
  for (const int64_t questions : {1, 20, 381, 100'000}) {
    const Interval interval = paired_score_interval(0, 0, questions);
    EXPECT_NEAR(interval.high, kSquare / (static_cast<double>(questions) + kSquare), 1e-12);
    EXPECT_EQ(interval.low, -interval.high);
  }
  EXPECT_EQ(paired_score_interval(5, 0, 5).high, 1);
  EXPECT_EQ(paired_score_interval(0, 0, 0), (Interval{-1, 1}));
}

TEST(PairedScoreInterval, TurnsRoundWithTheSides) {
  const Interval one = paired_score_interval(7, 20, 300), other = paired_score_interval(20, 7, 300);
  EXPECT_EQ(one.low, -other.high);
  EXPECT_EQ(one.high, -other.low);
  EXPECT_THROW(paired_score_interval(2, 2, 3), InvalidArgument);
  EXPECT_THROW(paired_score_interval(-1, 2, 3), InvalidArgument);
}

TEST(CountPairs, CountsWhoWasRight) {
  const std::vector<uint8_t> first = {1, 1, 0, 0, 1}, second = {1, 0, 1, 0, 0};
  const Pairs pairs = count_pairs(first, second);
  EXPECT_EQ(pairs.only_first, 2);
  EXPECT_EQ(pairs.only_second, 1);
  EXPECT_EQ(pairs.questions, 5);
  EXPECT_DOUBLE_EQ(pairs.difference(), 0.2);
  EXPECT_THROW(count_pairs(first, std::vector<uint8_t>{1}), InvalidArgument);
}

TEST(Statistics, ImpossibleCountsAreRefused) {
  EXPECT_THROW(wilson_interval(3, 2), InvalidArgument);
  EXPECT_THROW(wilson_interval(-1, 2), InvalidArgument);
  EXPECT_THROW(standard_error(3, 2), InvalidArgument);
  EXPECT_THROW(mcnemar_exact(-1, 2), InvalidArgument);
  EXPECT_THROW(paired_difference_interval(2, 2, 3), InvalidArgument);
}

// The middle 95 % of resampled means: for many scores that of the normal distribution around their mean.
TEST(BootstrapInterval, IsThatOfAMeanOfIndependentScores) {
  std::vector<double> scores;
  for (int i = 0; i < 900; ++i) scores.push_back(i % 3 == 0 ? 0.5 : i % 3 == 1 ? 1 : 0);
  const Interval interval = bootstrap_interval(scores);
  const double deviation = std::sqrt((0.25 + 1) / 3 - 0.25) / std::sqrt(900);
  EXPECT_NEAR(interval.low, 0.5 - 1.96 * deviation, 0.1 * deviation);
  EXPECT_NEAR(interval.high, 0.5 + 1.96 * deviation, 0.1 * deviation);
  EXPECT_EQ(bootstrap_interval(std::vector<double>(20, 1.0)), (Interval{1, 1}));
  EXPECT_EQ(bootstrap_interval({}), (Interval{0, 1}));
  EXPECT_THROW((void)bootstrap_interval(std::vector<double>{std::nan("")}), InvalidArgument);
}

// Questions are drawn anew, and each is asked three times, right with a chance of its own: the interval of
// the questions' means holds the true accuracy in 93 to 97 % of all evaluations; the interval that takes all
// replies for independent ones, as published tables do, in fewer.
TEST(IntervalsOfRepeats, CoverTheTruthAsOftenAsTheySay) {
  std::mt19937_64 random(11);
  std::uniform_real_distribution<double> uniform;
  constexpr int kEvaluations = 300, kQuestions = 60, kRepeats = 3;
  int held = 0, held_by_all = 0;
  for (int evaluation = 0; evaluation < kEvaluations; ++evaluation) {
    std::vector<double> means, all;
    for (int question = 0; question < kQuestions; ++question) {
      const double chance = uniform(random) < 0.5 ? 0.9 : 0.2;  // 0.55 on average
      double sum = 0;
      for (int repeat = 0; repeat < kRepeats; ++repeat) {
        all.push_back(uniform(random) < chance ? 1 : 0);
        sum += all.back();
      }
      means.push_back(sum / kRepeats);
    }
    const auto holds = [](const Interval& interval) { return interval.low <= 0.55 && interval.high >= 0.55; };
    held += holds(mean_of_scores(means, static_cast<uint32_t>(evaluation)).interval);
    held_by_all += holds(bootstrap_interval(all, static_cast<uint32_t>(evaluation)));
  }
  EXPECT_GE(held, 0.93 * kEvaluations);
  EXPECT_LE(held, 0.97 * kEvaluations);
  EXPECT_LT(held_by_all, 0.9 * kEvaluations);
}

}  // namespace
}  // namespace allot::evaluation
