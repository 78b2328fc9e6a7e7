// What the samplers promise: unbiased means, the variances of the paper's closed forms, the order of the
// variances. One row is estimated many times under different seeds by the fast path (one launch, sequences
// that share their pages); seeds are fixed, so a test passes or fails for ever. z bounds: 4.5 standard errors
// for the worst of up to 64 elements is exceeded by chance once in some 2,000 tests.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numeric>

#include "kernels/reference.h"
#include "kernels/sampling.h"
#include "kernels/sampling_variance.h"
#include "launch.h"
#include "repeated_row.h"

namespace allot::kernels {
namespace {

using testing::Estimates;
using testing::kFirstRow;
using testing::Launch;
using testing::LaunchSpec;
using testing::MeanEstimate;

constexpr double kZ = 4.5;
constexpr int32_t kHeadDim = 32;

// One row of `keys` keys, `repeats` times.
LaunchSpec repeated_row(int32_t keys, int32_t budget, int32_t repeats, double score_deviation,
                        uint32_t seed = 3) {
  return testing::repeated_row({1, keys, budget}, repeats, kHeadDim, score_deviation, seed);
}

Estimates estimate(Launch& launch, Estimator estimator) {
  launch.params.method.estimator = estimator;
  return testing::estimates_of(launch.params, launch.run(cpu::best_isa()));
}

Estimates estimate(const LaunchSpec& spec, Estimator estimator, int32_t tile = 256) {
  Launch launch(spec);
  launch.params.method.tile = tile;
  return estimate(launch, estimator);
}

double norm(const std::vector<double>& x) {
  return std::sqrt(std::inner_product(x.begin(), x.end(), x.begin(), 0.0));
}

double bias_norm(const Estimates& estimates) {
  std::vector<double> bias;
  for (size_t i = 0; i < kHeadDim; ++i) bias.push_back(estimates.output.mean(i) - estimates.exact[i]);
  return norm(bias);
}

class UnbiasedEstimator : public ::testing::TestWithParam<Estimator> {};
INSTANTIATE_TEST_SUITE_P(Statistics, UnbiasedEstimator,
                         ::testing::Values(Estimator::kIid, Estimator::kStrat, Estimator::kSys,
                                           Estimator::kFlash, Estimator::kThreshold),
                         [](const auto& estimator) { return std::string(name(estimator.param)); });

TEST_P(UnbiasedEstimator, HasTheExactOutputAsItsMeanOnFlatAndPeakedRows) {
  for (const double deviation : {0.5, 1.5, 4.0}) {
    for (const int32_t budget : {3, 8}) {
      const Estimates estimates = estimate(repeated_row(97, budget, 4000, deviation), GetParam(), 40);
      EXPECT_LT(estimates.output.largest_z(estimates.exact), kZ)
          << "score deviation " << deviation << " S " << budget;
      EXPECT_GT(estimates.squared_error.mean(0), 1e-6) << "the row must leave something to estimate";
    }
  }
}

// In prefill the same estimators run in another kernel: a prompt's last row under many seeds.
TEST_P(UnbiasedEstimator, HasTheExactOutputAsItsMeanInPrefill) {
  LaunchSpec spec = repeated_row(33, 8, 3000, 1.5);
  for (testing::Sequence& sequence : spec.sequences) sequence.queries = 2;
  Launch launch(spec);
  launch.params.method.tile = 9;
  launch.params.method.estimator = GetParam();
  const std::vector<double> outputs = launch.run(cpu::best_isa());
  AttentionParams exact = launch.params;
  exact.method.estimator = Estimator::kExact;
  exact.batch = 1;
  const std::vector<double> expected = reference::attend(exact);
  MeanEstimate mean(2 * kHeadDim);
  for (size_t first = 0; first < outputs.size(); first += 2 * kHeadDim) mean.add(&outputs[first]);
  EXPECT_LT(mean.largest_z(expected), kZ);
}

TEST(BiasedEstimator, TopkStaysWrongHoweverOftenItRuns) {
  const Estimates estimates = estimate(repeated_row(97, 8, 10, 1.0), Estimator::kTopk);
  EXPECT_GT(bias_norm(estimates), 0.05);
}

// docs/design.md, section 5: few samples against the number of tiles make `prop` biased, because the tiles
// with the largest fractions always get the samples left over.
TEST(BiasedEstimator, PropMissesTheMeanOn32TilesWithEightSamplesWhereSysDoesNot) {
  const LaunchSpec spec = repeated_row(8192, 8, 600, 2.5, 6);
  Launch launch(spec);
  launch.params.method.tile = 256;
  const Estimates prop = estimate(launch, Estimator::kProp);
  const Estimates sys = estimate(launch, Estimator::kSys);
  EXPECT_GT(bias_norm(prop), 0.3 * norm(prop.exact)) << "|pV| " << norm(prop.exact);
  EXPECT_GT(prop.output.largest_z(prop.exact), 3 * kZ);
  EXPECT_LT(sys.output.largest_z(sys.exact), kZ);
  RecordProperty("prop_bias_norm", std::to_string(bias_norm(prop)));
  RecordProperty("exact_norm", std::to_string(norm(prop.exact)));
}

TEST(Variance, OfIidAndStratEqualsTheClosedFormsOfAppendixN) {
  for (const double deviation : {0.5, 2.0}) {
    for (const int32_t budget : {1, 4, 16}) {
      Launch launch(repeated_row(97, budget, 4000, deviation));
      const std::vector<double> p = reference::softmax(reference::scores(launch.params, kFirstRow));
      const std::vector<double> values = reference::values(launch.params, kFirstRow);
      const double iid = iid_variance<double>(p, values, budget);
      const double strat = strat_variance<double>(p, values, budget);
      const Estimates iid_estimates = estimate(launch, Estimator::kIid);
      const Estimates strat_estimates = estimate(launch, Estimator::kStrat);
      const auto z = [](const Estimates& e, double expected) {
        return std::abs(e.squared_error.mean(0) - expected) / e.squared_error.standard_error(0);
      };
      EXPECT_LT(z(iid_estimates, iid), kZ) << iid_estimates.squared_error.mean(0) << " against " << iid;
      EXPECT_LT(z(strat_estimates, strat), kZ)
          << strat_estimates.squared_error.mean(0) << " against " << strat;
      EXPECT_LE(strat, iid * (1 + 1e-12)) << "Theorem A.6";
    }
  }
}

// A row whose values are smooth functions of the CDF: element i is f(i, F) at the middle F of each key's
// share.
template <class Function>
void make_smooth(Launch& launch, const Function& f) {
  const int32_t keys = reference::visible_keys(launch.params, kFirstRow);
  const std::vector<double> p = reference::softmax(reference::scores(launch.params, kFirstRow));
  double cdf = 0;
  for (int32_t key = 0; key < keys; ++key) {
    for (int32_t i = 0; i < kHeadDim; ++i) {
      launch.set_value(0, 0, key, i, static_cast<float>(f(i, cdf + p[key] / 2)));
    }
    cdf += p[key];
  }
}

bool surely_less(const Estimates& a, const Estimates& b) {
  const double margin = kZ * std::hypot(a.squared_error.standard_error(0), b.squared_error.standard_error(0));
  return a.squared_error.mean(0) + margin < b.squared_error.mean(0);
}

// Values that swing slowly along the row and end where they began: the equally spaced targets of `sys` cancel
// the swings.
TEST(Variance, FallsFromIidToStratToSysOnSmoothRows) {
  Launch launch(repeated_row(400, 8, 3000, 0.5));
  make_smooth(launch, [](int32_t i, double t) { return std::cos(2 * M_PI * (1 + i % 3) * t + i); });
  const Estimates iid = estimate(launch, Estimator::kIid);
  const Estimates strat = estimate(launch, Estimator::kStrat);
  const Estimates sys = estimate(launch, Estimator::kSys);
  EXPECT_TRUE(surely_less(strat, iid)) << strat.squared_error.mean(0) << " " << iid.squared_error.mean(0);
  EXPECT_TRUE(surely_less(sys, strat)) << sys.squared_error.mean(0) << " " << strat.squared_error.mean(0);
}

// The limit of `sys` (Cochran 1977, chapter 8): along a trend all its samples err to the same side, and
// independent offsets do better. It still beats independent samples.
TEST(Variance, OfSysLiesBetweenStratAndIidAlongATrend) {
  Launch launch(repeated_row(400, 8, 3000, 0.5));
  make_smooth(launch, [](int32_t i, double t) { return (1 + i % 3) * t; });
  const Estimates iid = estimate(launch, Estimator::kIid);
  const Estimates strat = estimate(launch, Estimator::kStrat);
  const Estimates sys = estimate(launch, Estimator::kSys);
  EXPECT_TRUE(surely_less(strat, sys)) << strat.squared_error.mean(0) << " " << sys.squared_error.mean(0);
  EXPECT_TRUE(surely_less(sys, iid)) << sys.squared_error.mean(0) << " " << iid.squared_error.mean(0);
}

// Keeping the large rows and drawing only the small ones: never worse than drawing all, several times better
// when peaked.
TEST(Variance, OfThresholdIsAtMostThatOfSys) {
  for (const double deviation : {0.5, 2.0, 4.0}) {
    for (const uint32_t seed : {3u, 4u, 5u}) {
      const LaunchSpec spec = repeated_row(150, 8, 2000, deviation, seed);
      const Estimates sys = estimate(spec, Estimator::kSys);
      const Estimates threshold = estimate(spec, Estimator::kThreshold);
      const double tolerance =
          kZ * std::hypot(sys.squared_error.standard_error(0), threshold.squared_error.standard_error(0));
      EXPECT_LT(threshold.squared_error.mean(0), sys.squared_error.mean(0) + tolerance)
          << deviation << " " << seed;
      if (deviation == 4.0) {
        EXPECT_LT(threshold.squared_error.mean(0) * 1.4, sys.squared_error.mean(0)) << "seed " << seed;
      }
    }
  }
}

// Selections of the oracle itself, on rows small enough to check by hand.
TEST(ReferenceSelection, SysCountsFollowTheFloorFormula) {
  const std::vector<double> p = {0.1, 0.45, 0.05, 0.4};
  for (uint32_t question = 0; question < 50; ++question) {
    const DrawRow draws{.key = {1, 2}, .question = question};
    const double u = draw_uniform(draws, kRowDraw);
    double cdf = 0;
    std::vector<reference::Selected> expected;
    for (int32_t n = 0; n < 4; ++n) {
      const double count = std::floor(5 * (cdf + p[n]) + u + 1e-12) - std::floor(5 * cdf + u + 1e-12);
      cdf += p[n];
      if (count > 0) expected.push_back({n, count / 5});
    }
    const auto selected = reference::select(p, {.estimator = Estimator::kSys, .budget = 5}, draws);
    ASSERT_EQ(selected.size(), expected.size()) << "question " << question;
    for (size_t i = 0; i < selected.size(); ++i) {
      EXPECT_EQ(selected[i].key, expected[i].key);
      EXPECT_NEAR(selected[i].weight, expected[i].weight, 1e-12);
    }
  }
}

TEST(ReferenceSelection, ThresholdKeepsLargeRowsAndDrawsTheRestWithWeightTau) {
  // tau solves 1 + 1 + (0.05 + 0.1 + 0.05) / tau = 4: tau = 0.1, which 0.1 itself reaches; then (0.05 + 0.05)
  // / (4 - 3).
  const std::vector<double> p = {0.05, 0.5, 0.1, 0.3, 0.05};
  const auto selected = reference::select(p, {.estimator = Estimator::kThreshold, .budget = 4}, {});
  ASSERT_EQ(selected.size(), 4u);
  double total = 0;
  for (const auto& [key, weight] : selected) {
    EXPECT_NEAR(weight, key == 0 || key == 4 ? 0.1 : p[key], 1e-12) << "key " << key;
    total += weight;
  }
  EXPECT_NEAR(total, 1, 1e-12);
  EXPECT_EQ(reference::select(p, {.estimator = Estimator::kThreshold, .budget = 5}, {}),
            reference::select(p, {.estimator = Estimator::kExact}, {}));
}

TEST(ReferenceSelection, TopkBreaksTiesTowardsTheLowerIndexAndRenormalises) {
  const std::vector<double> p = {0.2, 0.3, 0.2, 0.3};
  const auto selected = reference::select(p, {.estimator = Estimator::kTopk, .budget = 3}, {});
  ASSERT_EQ(selected.size(), 3u);
  EXPECT_EQ(selected[0].key, 0);
  EXPECT_NEAR(selected[0].weight, 0.25, 1e-12);
  EXPECT_EQ(selected[1].key, 1);
  EXPECT_EQ(selected[2].key, 3);
}

TEST(ReferenceSelection, FlashSpreadsTheRemainderOverTheFirstTiles) {
  EXPECT_EQ(flash_tile_budget(11, 4, 0), 3);
  EXPECT_EQ(flash_tile_budget(11, 4, 2), 3);
  EXPECT_EQ(flash_tile_budget(11, 4, 3), 2);
  const std::vector<double> p(8, 0.125);
  const auto selected = reference::select(p, {.estimator = Estimator::kFlash, .budget = 3, .tile = 4},
                                          {.key = {9, 9}, .question = 1});
  double first_tile = 0, second_tile = 0;
  for (const auto& [key, weight] : selected) (key < 4 ? first_tile : second_tile) += weight;
  EXPECT_NEAR(first_tile, 0.5, 1e-12);
  EXPECT_NEAR(second_tile, 0.5, 1e-12);
}

}  // namespace
}  // namespace allot::kernels
