// The Bernoulli score stages of Appendix C: unbiased in the score, with the error levels of its Figure 6.
#include <gtest/gtest.h>

#include <cmath>

#include "bernoulli_stage.h"
#include "kernels/reference.h"
#include "launch.h"
#include "tests/repeats.h"

namespace allot::kernels {
namespace {

using testing::Launch;
using testing::MeanEstimate;

class BernoulliScores : public ::testing::TestWithParam<testing::BernoulliStage> {};
INSTANTIATE_TEST_SUITE_P(Kernels, BernoulliScores, testing::bernoulli_stages(), testing::stage_name);

// 3,000 draws; the largest of 20 scores of 2 heads within 4.5 standard errors.
TEST_P(BernoulliScores, HaveTheExactScoresAsTheirMean) {
  Launch launch(
      {.sequences = {{1, 20, 8}}, .num_q_heads = 4, .num_kv_heads = 2, .estimator = Estimator::kSys});
  AttentionParams& p = launch.params;
  for (const int32_t head : {0, 3}) {
    const reference::Row row{0, 0, head};
    p.method.score_stage = ScoreStage::kExact;
    const std::vector<double> exact = reference::scores(p, row);
    p.method.score_stage = GetParam().stage;
    p.method.score_budget = 3;
    p.method.mean_group_query = GetParam().mean_group_query;
    MeanEstimate mean(exact.size());
    for (uint32_t question = 0; question < 3000; ++question) {
      launch.draws[0].question = question;
      const std::vector<double> estimate = reference::scores(p, row);
      mean.add(estimate.data());
    }
    EXPECT_LT(mean.largest_z(exact), 4.5) << "head " << head;
    EXPECT_GT(mean.standard_error(0), 1e-4) << "the scores must vary";
    p.method.mean_group_query = false;
  }
}

// Mean L2 error of the scores relative to the exact ones: d = 128, 1024 keys, q and K normal, B = 4, as in
// C.1.
double mean_error(ScoreStage stage) {
  constexpr int kInstances = repeats(40);
  double sum = 0;
  for (uint32_t seed = 1; seed <= kInstances; ++seed) {
    Launch launch({.sequences = {{1, 1024, 1}},
                   .num_q_heads = 1,
                   .num_kv_heads = 1,
                   .head_dim = 128,
                   .estimator = Estimator::kSys,
                   .score_deviation = 1,
                   .seed = seed});
    const reference::Row row{0, 0, 0};
    const std::vector<double> exact = reference::scores(launch.params, row);
    launch.params.method.score_stage = stage;
    launch.params.method.score_budget = 4;
    const std::vector<double> estimate = reference::scores(launch.params, row);
    double error = 0, size = 0;
    for (size_t n = 0; n < exact.size(); ++n) {
      error += std::pow(estimate[n] - exact[n], 2);
      size += exact[n] * exact[n];
    }
    sum += std::sqrt(error / size);
  }
  return sum / kInstances;
}

TEST(BernoulliError, IsAboutSixtyPercentForIidAndThirtyForStratifiedAtFourSamples) {
  EXPECT_NEAR(mean_error(ScoreStage::kBernoulli), 0.6, 0.08);
  EXPECT_NEAR(mean_error(ScoreStage::kBernoulliStrat), 0.3, 0.04);
}

TEST(BernoulliError, AQueryOfZerosHasScoresOfZero) {
  Launch launch(
      {.sequences = {{1, 5, 8}}, .num_q_heads = 1, .num_kv_heads = 1, .estimator = Estimator::kSys});
  for (int32_t i = 0; i < 32; ++i) launch.set_query(0, 0, i, 0);
  launch.params.method.score_stage = ScoreStage::kBernoulli;
  launch.params.method.score_budget = 2;
  for (const double score : reference::scores(launch.params, {0, 0, 0})) EXPECT_EQ(score, 0);
  for (const cpu::Isa isa : testing::supported_isas()) {
    for (const double x : launch.run(isa)) EXPECT_TRUE(std::isfinite(x)) << cpu::name(isa);
  }
}

// Four sequences are enough for one thread to take all KV heads of a decode step together; each head group
// must still have the mean of its own queries.
TEST(BernoulliMeanGroupQuery, IsThatOfTheHeadsOwnGroupWhenOneItemHasSeveralKvHeads) {
  constexpr int32_t kHeads = 6, kDim = 32;
  Launch launch({.sequences = {{1, 40, 8}, {1, 17, 8}, {1, 33, 8}, {1, 5, 8}},
                 .num_q_heads = kHeads,
                 .num_kv_heads = 3,
                 .head_dim = kDim,
                 .estimator = Estimator::kExact});
  launch.params.method.score_budget = 4;
  launch.params.method.mean_group_query = true;
  for (const ScoreStage stage : {ScoreStage::kBernoulli, ScoreStage::kBernoulliStrat}) {
    launch.params.method.score_stage = stage;
    const std::vector<double> expected = reference::attend(launch.params);
    for (const cpu::Isa isa : testing::supported_isas()) {
      const std::vector<double> out = launch.run(isa);
      for (size_t i = 0; i < out.size(); ++i) {
        ASSERT_NEAR(out[i], expected[i], 1e-4) << name(stage) << " " << cpu::name(isa) << " sequence "
                                               << i / (kHeads * kDim) << " head " << i / kDim % kHeads;
      }
    }
  }
}

}  // namespace
}  // namespace allot::kernels
