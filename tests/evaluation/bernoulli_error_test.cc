#include "evaluation/bernoulli_error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "tests/names.h"

namespace allot::evaluation {
namespace {

using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

std::vector<BernoulliError> measured(BernoulliSetting setting, bool stratified) {
  setting.stratified = stratified;
  return measure_bernoulli(setting);
}

// Figure 6 of the S2ANTA paper: at B = 4 about 60 % with independent draws, 30 % with stratified ones.
TEST(BernoulliErrors, AreThoseOfFigureSix) {
  const BernoulliSetting setting{.keys = 256, .budgets = {4}, .instances = 60};
  const BernoulliError independent = measured(setting, false).front();
  const BernoulliError stratified = measured(setting, true).front();
  EXPECT_NEAR(independent.error, .6, .06);
  EXPECT_NEAR(stratified.error, .3, .04);
  EXPECT_NEAR(stratified.error / independent.error, .5, .05) << "the aim is within a tenth";
  EXPECT_LT(independent.standard_error, .01);
}

// Independent draws average out, stratified ones leave at most one of B undecided.
TEST(BernoulliErrors, FallWithTheRootOfTheBudgetOrWithTheBudget) {
  const BernoulliSetting setting{.keys = 128, .head_dim = 64, .budgets = {4, 16, 64}, .instances = 40};
  const auto independent = measured(setting, false);
  const auto stratified = measured(setting, true);
  EXPECT_NEAR(independent[0].error / independent[2].error, 4, .5);
  EXPECT_NEAR(stratified[0].error / stratified[2].error, 16, 2);
}

TEST(BernoulliErrors, AreOfEstimatesThatReadMoreFeaturesWithMoreDraws) {
  const BernoulliSetting setting{.keys = 8, .budgets = {1, 4, 1000}, .instances = 20};
  for (const bool stratified : {false, true}) {
    const auto rows = measured(setting, stratified);
    EXPECT_LT(rows[0].features, rows[1].features);
    EXPECT_GT(rows[0].sectors, rows[0].features) << "sectors of 16 are read for one of them";
    EXPECT_GT(rows[2].features, .95);
    EXPECT_NEAR(rows[2].sectors, 1, 1e-9);
  }
  // A mean query is flatter, so more of its elements are drawn.
  BernoulliSetting group = setting;
  group.group = 8;
  EXPECT_GT(measured(group, false)[0].features, 1.3 * measured(setting, false)[0].features);
}

// Of an element whose magnitude is the largest every draw succeeds.
TEST(BernoulliErrors, OfASingleElementAreNone) {
  for (const bool stratified : {false, true}) {
    for (const BernoulliError& row :
         measured({.keys = 3, .head_dim = 1, .budgets = {1, 5}, .instances = 4}, stratified)) {
      EXPECT_NEAR(row.error, 0, 1e-6);
      EXPECT_NEAR(row.features, 1, 1e-9);
    }
  }
}

TEST(BernoulliErrors, DependOnTheSeedAndNotOnThreads) {
  BernoulliSetting setting{.keys = 16, .head_dim = 32, .budgets = {2}, .instances = 9, .threads = 1};
  const double one = measured(setting, true).front().error;
  setting.threads = 4;
  EXPECT_EQ(measured(setting, true).front().error, one);
  setting.seed = 1;
  EXPECT_NE(measured(setting, true).front().error, one);
}

TEST(BernoulliErrors, RefuseNumbersThatMeanNothing) {
  EXPECT_THAT([] { measure_bernoulli({.budgets = {0}}); },
              ThrowsMessage<InvalidArgument>(Names("budget", 0)));
  EXPECT_THAT([] { measure_bernoulli({.budgets = {1}, .instances = 1}); },
              ThrowsMessage<InvalidArgument>(Names("instances", 1, 2)));
  const std::atomic<bool> stop = true;
  EXPECT_THAT(measure_bernoulli({.budgets = {1}}, {}, &stop), IsEmpty());
}

}  // namespace
}  // namespace allot::evaluation
