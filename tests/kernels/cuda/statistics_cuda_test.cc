// What the samplers promise, measured on the GPU as sampling_statistics_test.cc measures it on the CPU:
// unbiased means, the variances of the paper's closed forms, the order of the variances. One launch estimates
// one row thousands of times under different draws; seeds are fixed, so a test passes or fails for ever. z
// bounds: 4.5 standard errors for the worst of up to 128 elements is exceeded by chance once in some 1,000
// tests. float16, whose rounding of the output (2^-11 of it, as good as random) stays far below the standard
// errors.
#include <cmath>
#include <numeric>

#include "../repeated_row.h"
#include "cuda_launch.h"
#include "kernels/reference.h"
#include "kernels/sampling_variance.h"

namespace allot::kernels {
namespace {

using testing::CudaTest;
using testing::Estimates;
using testing::kFirstRow;
using testing::Launch;
using testing::LaunchSpec;
using testing::MeanEstimate;

constexpr double kZ = 4.5;
constexpr int32_t kHeadDim = 64;
constexpr double kLeastError = 1e-4;  // the output's rounding; see MeanEstimate::largest_z

// One row of `keys` keys, `repeats` times.
LaunchSpec repeated_row(int32_t keys, int32_t budget, int32_t repeats, double score_deviation,
                        uint32_t seed = 3) {
  LaunchSpec spec = testing::repeated_row({1, keys, budget}, repeats, kHeadDim, score_deviation, seed);
  spec.dtype = DType::kFloat16;
  return spec;
}

Estimates estimate(Launch& launch, Estimator estimator) {
  launch.params.method.estimator = estimator;
  return testing::estimates_of(launch.params, testing::run_cuda(launch));
}

Estimates estimate(const LaunchSpec& spec, Estimator estimator, int32_t tile = 64) {
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

class CudaUnbiased : public CudaTest, public ::testing::WithParamInterface<Estimator> {};
INSTANTIATE_TEST_SUITE_P(Statistics, CudaUnbiased,
                         ::testing::Values(Estimator::kIid, Estimator::kStrat, Estimator::kSys,
                                           Estimator::kFlash, Estimator::kThreshold),
                         [](const auto& estimator) { return std::string(name(estimator.param)); });

TEST_P(CudaUnbiased, HasTheExactOutputAsItsMeanOnFlatAndPeakedRows) {
  for (const double deviation : {0.5, 1.5, 4.0}) {
    for (const int32_t budget : {3, 8, 40}) {
      const Estimates estimates = estimate(repeated_row(150, budget, 6000, deviation), GetParam());
      EXPECT_LT(estimates.output.largest_z(estimates.exact, kLeastError), kZ)
          << "score deviation " << deviation << " S " << budget;
      EXPECT_GT(estimates.squared_error.mean(0), 1e-6) << "the row must leave something to estimate";
    }
  }
}

TEST_P(CudaUnbiased, HasTheExactOutputAsItsMeanOnALongRow) {
  const Estimates estimates = estimate(repeated_row(5000, 32, 6000, 2.0), GetParam(), 256);
  EXPECT_LT(estimates.output.largest_z(estimates.exact, kLeastError), kZ);
}

// In prefill the same estimators run in other kernels: the last two rows of a prompt under many draws.
TEST_P(CudaUnbiased, HasTheExactOutputAsItsMeanInPrefill) {
  LaunchSpec spec = repeated_row(161, 8, 4000, 1.5);
  for (testing::Sequence& sequence : spec.sequences) sequence.queries = 2;
  Launch launch(spec);
  launch.params.method.tile = 64;
  launch.params.method.estimator = GetParam();
  const std::vector<double> outputs = testing::run_cuda(launch);
  AttentionParams exact = launch.params;
  exact.method.estimator = Estimator::kExact;
  exact.batch = 1;
  const std::vector<double> expected = reference::attend(exact);
  MeanEstimate mean(2 * kHeadDim);
  for (size_t first = 0; first < outputs.size(); first += 2 * kHeadDim) mean.add(&outputs[first]);
  EXPECT_LT(mean.largest_z(expected, kLeastError), kZ);
}

class CudaVariance : public CudaTest {};

// docs/design.md, section 5: few samples against the number of tiles make `prop` biased, because the tiles
// with the largest fractions always get the samples left over.
TEST_F(CudaVariance, PropMissesTheMeanOn32TilesWithEightSamplesWhereSysDoesNot) {
  Launch launch(repeated_row(8192, 8, 2000, 2.5, 6));
  launch.params.method.tile = 256;
  const Estimates prop = estimate(launch, Estimator::kProp);
  const Estimates sys = estimate(launch, Estimator::kSys);
  EXPECT_GT(bias_norm(prop), 0.2 * norm(prop.exact)) << "|pV| " << norm(prop.exact);
  EXPECT_GT(prop.output.largest_z(prop.exact, kLeastError), 3 * kZ);
  EXPECT_LT(sys.output.largest_z(sys.exact, kLeastError), kZ);
  RecordProperty("prop_bias_norm", std::to_string(bias_norm(prop)));
  RecordProperty("exact_norm", std::to_string(norm(prop.exact)));
}

TEST_F(CudaVariance, OfIidAndStratEqualsTheClosedFormsOfAppendixN) {
  for (const double deviation : {0.5, 2.0}) {
    for (const int32_t budget : {1, 4, 16}) {
      Launch launch(repeated_row(97, budget, 6000, deviation));
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
    }
  }
}

// Values that swing slowly along the CDF: the equally spaced targets of `sys` cancel the swings.
TEST_F(CudaVariance, FallsFromIidToStratToSysOnSmoothRows) {
  Launch launch(repeated_row(400, 8, 4000, 0.5));
  const std::vector<double> p = reference::softmax(reference::scores(launch.params, kFirstRow));
  double cdf = 0;
  for (int32_t key = 0; key < 400; ++key) {
    for (int32_t i = 0; i < kHeadDim; ++i) {
      launch.set_value(0, 0, key, i,
                       static_cast<float>(std::cos(2 * M_PI * (1 + i % 3) * (cdf + p[key] / 2) + i)));
    }
    cdf += p[key];
  }
  const auto surely_less = [](const Estimates& a, const Estimates& b) {
    const double margin =
        kZ * std::hypot(a.squared_error.standard_error(0), b.squared_error.standard_error(0));
    return a.squared_error.mean(0) + margin < b.squared_error.mean(0);
  };
  const Estimates iid = estimate(launch, Estimator::kIid);
  const Estimates strat = estimate(launch, Estimator::kStrat);
  const Estimates sys = estimate(launch, Estimator::kSys);
  EXPECT_TRUE(surely_less(strat, iid)) << strat.squared_error.mean(0) << " " << iid.squared_error.mean(0);
  EXPECT_TRUE(surely_less(sys, strat)) << sys.squared_error.mean(0) << " " << strat.squared_error.mean(0);
}

// Keeping the large rows and drawing only the small ones: never worse than drawing all, several times better
// when peaked.
TEST_F(CudaVariance, OfThresholdIsAtMostThatOfSys) {
  for (const double deviation : {0.5, 2.0, 4.0}) {
    for (const uint32_t seed : {3u, 4u, 5u}) {
      const LaunchSpec spec = repeated_row(150, 8, 4000, deviation, seed);
      const Estimates sys = estimate(spec, Estimator::kSys);
      const Estimates threshold = estimate(spec, Estimator::kThreshold);
      const double tolerance =
          kZ * std::hypot(sys.squared_error.standard_error(0), threshold.squared_error.standard_error(0));
      EXPECT_LT(threshold.squared_error.mean(0), sys.squared_error.mean(0) + tolerance)
          << "score deviation " << deviation << " seed " << seed;
      if (deviation == 4.0) {
        EXPECT_LT(threshold.squared_error.mean(0) * 1.3, sys.squared_error.mean(0)) << "seed " << seed;
      }
    }
  }
}

}  // namespace
}  // namespace allot::kernels
