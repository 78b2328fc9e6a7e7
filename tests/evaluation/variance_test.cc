#include "evaluation/variance.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "base/error.h"
#include "kernels/sampling_variance.h"
#include "tests/names.h"

namespace allot::evaluation {
namespace {

using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

// Weights .5, .3, .2 and values 0, 1, 3 of one element: mean .9, variance .3 + 1.8 - .81 = 1.29.
const std::vector<double> kWeights = {.5, .3, .2};
const std::vector<float> kValues = {0, 1, 3};

TEST(Variance, OfIndependentDrawsIsThatOfOneOverTheirNumber) {
  EXPECT_NEAR(kernels::iid_variance<float>(kWeights, kValues, 1), 1.29, 1e-12);
  EXPECT_NEAR(kernels::iid_variance<float>(kWeights, kValues, 6), 1.29 / 6, 1e-12);
}

// Two strata: all of 0, then .3 of 1 and .2 of 3, whose mean is 1.8 and variance .6 + .4 * 9 - 3.24 = .96.
TEST(Variance, OfStrataIsTheSumOfTheirs) {
  EXPECT_NEAR(kernels::strat_variance<float>(kWeights, kValues, 1), 1.29, 1e-12);
  EXPECT_NEAR(kernels::strat_variance<float>(kWeights, kValues, 2), .96 / 4, 1e-12);
  // Four: 0; 0; 1; .05 of 1 and .2 of 3.
  const double last = .2 * 1 + .8 * 9 - 2.6 * 2.6;
  EXPECT_NEAR(kernels::strat_variance<float>(kWeights, kValues, 4), last / 16, 1e-12);
}

TEST(Variance, CountsTheRowsThatAreReadInTheMean) {
  EXPECT_NEAR(expected_rows(kWeights, Spacing::kIndependent, 1), 1, 1e-12);
  EXPECT_NEAR(expected_rows(kWeights, Spacing::kIndependent, 2), 3 - .25 - .49 - .64, 1e-12);
  EXPECT_NEAR(expected_rows(kWeights, Spacing::kStratified, 2), 1 + .6 + .4, 1e-12);
  EXPECT_NEAR(expected_rows(kWeights, Spacing::kSystematic, 2), 1 + .6 + .4, 1e-12);
  EXPECT_NEAR(expected_rows(kWeights, Spacing::kSystematic, 4), 1 + 1 + .8, 1e-12);
  // Of the four strata of the test above the third is key 1 alone.
  EXPECT_NEAR(expected_rows(kWeights, Spacing::kStratified, 4), 1 + 1 + .8, 1e-12);
}

VarianceSetting setting_of(Spacing spacing) {
  return {.keys = 300,
          .head_dim = 8,
          .score_deviation = 2,
          .samples = {1, 4, 16, 64},
          .heads = 4,
          .replicates = 1500,
          .spacing = spacing,
          .seed = 3};
}

TEST(Variance, AsMeasuredIsThatOfTheFormulas) {
  for (const Spacing spacing : {Spacing::kIndependent, Spacing::kStratified, Spacing::kSystematic}) {
    for (const Variance& row : measure_variance(setting_of(spacing))) {
      EXPECT_EQ(row.squared_error.formula.has_value(), spacing != Spacing::kSystematic);
      if (const auto z = row.squared_error.z()) {
        EXPECT_LT(std::abs(*z), 3.5) << name(spacing) << " " << row.samples;
      }
      if (row.samples == 1) {
        EXPECT_EQ(row.rows.mean, 1);
        EXPECT_NEAR(*row.rows.formula, 1, 1e-9);
      } else {
        EXPECT_LT(std::abs(row.rows.z().value()), 3.5) << name(spacing) << " " << row.samples;
      }
      EXPECT_GT(row.squared_error.standard_error, 0);
    }
  }
}

// One offset in place of a draw a stratum neither reads fewer rows nor errs more on weights without order.
TEST(Variance, FallsFasterThanOneOverTheSamplesWhereTheyAreSpread) {
  const std::vector<Variance> independent = measure_variance(setting_of(Spacing::kIndependent));
  const std::vector<Variance> stratified = measure_variance(setting_of(Spacing::kStratified));
  const std::vector<Variance> systematic = measure_variance(setting_of(Spacing::kSystematic));
  EXPECT_NEAR(slope(independent).value(), -1, 1e-9);
  EXPECT_LT(slope(stratified).value(), -1.1);
  EXPECT_LT(slope(systematic).value(), -1.1);
  EXPECT_LT(stratified[3].squared_error.mean, independent[3].squared_error.mean);
  EXPECT_GT(systematic[3].rows.mean, stratified[3].rows.mean);
  EXPECT_GT(stratified[3].rows.mean, independent[3].rows.mean);
  EXPECT_EQ(slope(std::span(independent).first(1)), std::nullopt);
}

// log(2 / .5) = 1.386...: sqrt(2 * 3 * 1.386 / 4) + 2 * 6 * 1.386 / 12.
TEST(Variance, BoundsOfTailsAreThoseOfTheTheorem) {
  const double log = std::log(4.0);
  EXPECT_NEAR(bernstein_bound(3, 6, 4, .5), std::sqrt(1.5 * log) + log, 1e-12);
}

TEST(Variance, TailsLieWithinTheBoundAndFallWithSamples) {
  const std::vector<double> deltas = {.5, .05};
  VarianceSetting setting = setting_of(Spacing::kIndependent);
  const std::vector<Tail> tails = measure_tails(setting, deltas);
  ASSERT_EQ(tails.size(), 2 * setting.samples.size());
  for (size_t i = 0; i < tails.size(); ++i) {
    EXPECT_EQ(tails[i].samples, setting.samples[i / 2]);
    EXPECT_EQ(tails[i].delta, deltas[i % 2]);
    EXPECT_LE(tails[i].beyond, tails[i].delta);
    EXPECT_LT(tails[i].quantile, tails[i].bound);
    EXPECT_GT(tails[i].quantile, 0);
  }
  EXPECT_LT(tails[0].quantile, tails[1].quantile) << "the rarer lies farther out";
  EXPECT_NEAR(tails[4].quantile / tails[6].quantile, 2, .2) << "four times the samples";
  setting.spacing = Spacing::kSystematic;
  EXPECT_LT(measure_tails(setting, deltas)[6].quantile, tails[6].quantile);
  EXPECT_THAT([&] { measure_tails(setting, std::vector<double>{1}); },
              ThrowsMessage<InvalidArgument>(Names("delta", 1)));
}

TEST(Variance, DependsOnTheSeedAndNotOnThreads) {
  VarianceSetting setting = setting_of(Spacing::kStratified);
  setting.replicates = 20;
  setting.threads = 1;
  const Variance one = measure_variance(setting).back();
  setting.threads = 3;
  const Variance three = measure_variance(setting).back();
  EXPECT_EQ(one.squared_error.mean, three.squared_error.mean);
  EXPECT_EQ(one.rows.mean, three.rows.mean);
  setting.seed = 4;
  EXPECT_NE(measure_variance(setting).back().squared_error.mean, one.squared_error.mean);
}

TEST(Variance, RefusesNumbersThatMeanNothing) {
  VarianceSetting setting = setting_of(Spacing::kIndependent);
  setting.replicates = 1;
  EXPECT_THAT([&] { measure_variance(setting); }, ThrowsMessage<InvalidArgument>(Names("replicates", 1, 2)));
  setting.replicates = 2;
  setting.score_deviation = std::nan("");
  EXPECT_THAT([&] { measure_variance(setting); }, ThrowsMessage<InvalidArgument>(Names("score_deviation")));
  setting.score_deviation = 1;
  setting.samples = {0};
  EXPECT_THAT([&] { measure_variance(setting); }, ThrowsMessage<InvalidArgument>(Names("samples", 0)));
  setting.samples = {2};
  const std::atomic<bool> stop = true;
  EXPECT_THAT(measure_variance(setting, {}, &stop), IsEmpty());
}

}  // namespace
}  // namespace allot::evaluation
