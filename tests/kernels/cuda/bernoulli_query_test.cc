// The Bernoulli query as the CUDA kernel forms it, element by element on the host, against the reference.
#include "kernels/bernoulli_query.h"
#include "../bernoulli_stage.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "kernels/cuda/plan.h"
#include "kernels/element.h"
#include "kernels/reference.h"
#include "tests/kernels/launch.h"

namespace allot::kernels {
namespace {

using testing::Launch;
using testing::LaunchSpec;

float query_element(const AttentionParams& p, const reference::Row& row, int32_t head, int32_t i) {
  const int64_t token = p.query_start[row.sequence] + row.query;
  return element(p.query, p.dtype, token * p.query_stride + int64_t{head} * p.head_dim + i);
}

// The row's query as BernoulliQueries::estimate of kernels/cuda/bernoulli_kernel.cuh forms it.
std::vector<float> estimate(const AttentionParams& p, const reference::Row& row) {
  const int32_t group = p.num_q_heads / p.num_kv_heads;
  const int32_t heads = p.method.mean_group_query ? group : 1;
  const int32_t first_head = row.head / heads * heads;
  std::vector<double> magnitude(p.head_dim, 0.0);
  for (int32_t i = 0; i < p.head_dim; ++i) {
    for (int32_t h = 0; h < heads; ++h) {
      magnitude[i] += static_cast<double>(std::fabs(query_element(p, row, first_head + h, i))) / heads;
    }
  }
  const double norm = *std::max_element(magnitude.begin(), magnitude.end());
  DrawRow draw_row = reference::draw_row(p, row);
  draw_row.head = static_cast<uint32_t>(p.first_head + first_head);
  const BernoulliDraws draws{draw_row, p.head_dim, p.method.score_budget};
  std::vector<BernoulliElement> elements;
  for (int32_t i = 0; i < p.head_dim; ++i) {
    elements.push_back(bernoulli_element(magnitude[i], norm, p.method.score_budget));
    if (p.method.score_stage == ScoreStage::kBernoulliStrat && elements[i].threshold > 0) {
      elements[i].successes = draws.stratified(i, magnitude[i] / norm);
    }
  }
  for (int32_t i = 0; p.method.score_stage == ScoreStage::kBernoulli && i < p.head_dim; i += 4) {
    uint32_t threshold[4];
    int32_t successes[4] = {};
    for (int k = 0; k < 4; ++k) threshold[k] = elements[i + k].threshold;
    for (int32_t b = 0; b < p.method.score_budget; ++b) draws.count(b, i, threshold, successes);
    for (int k = 0; k < 4; ++k) elements[i + k].successes += successes[k];
  }
  std::vector<float> result;
  for (int32_t i = 0; i < p.head_dim; ++i) {
    result.push_back(bernoulli_estimate(query_element(p, row, row.head, i), elements[i]));
  }
  return result;
}

class BernoulliQuery : public ::testing::TestWithParam<testing::BernoulliStage> {};
INSTANTIATE_TEST_SUITE_P(Kernels, BernoulliQuery, testing::bernoulli_stages(), testing::stage_name);

// One success more or less would change an element by at least 1/B.
TEST_P(BernoulliQuery, HasTheReferencesSuccessesInEveryElement) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (const int32_t budget : {1, 2, 3, 4, 7, 32, 1000}) {
      for (const int32_t group : {1, 4, 7}) {
        Launch launch({.sequences = {{1, 97, 8}, {5, 40, 8}},
                       .num_q_heads = 2 * group,
                       .num_kv_heads = 2,
                       .head_dim = group == 7 ? 96 : 64,
                       .dtype = dtype,
                       .seed = static_cast<uint32_t>(budget + group)});
        AttentionParams& p = launch.params;
        p.method.score_stage = GetParam().stage;
        p.method.score_budget = budget;
        p.method.mean_group_query = GetParam().mean_group_query;
        for (int64_t query = 0; query < 6; ++query) {
          for (int32_t head = 0; head < p.num_q_heads; ++head) {
            const reference::Row row =
                query == 0 ? reference::Row{0, 0, head} : reference::Row{1, query - 1, head};
            const std::vector<double> expected = reference::score_query(p, row);
            const std::vector<float> actual = estimate(p, row);
            for (int32_t i = 0; i < p.head_dim; ++i) {
              ASSERT_NEAR(actual[i], expected[i], 1e-6 * std::abs(expected[i]))
                  << name(dtype) << " B " << budget << " group " << group << " query " << query << " head "
                  << head << " element " << i;
            }
          }
        }
      }
    }
  }
}

// Probabilities that are fractions of B, where a stratum begins exactly at one.
TEST_P(BernoulliQuery, HasTheReferencesSuccessesAtTheStratasBounds) {
  for (const int32_t budget : {1, 2, 3, 5, 6, 8, 100}) {
    Launch launch({.sequences = {{1, 3, 8}},
                   .num_q_heads = 2,
                   .num_kv_heads = 1,
                   .head_dim = 64,
                   .dtype = DType::kFloat16});
    for (int32_t head = 0; head < 2; ++head) {
      for (int32_t i = 0; i < 64; ++i) {
        launch.set_query(0, head, i, static_cast<float>((i % 2 == 0 ? 1 : -1) * (i % 16)) / 15.0f * 30.0f);
      }
    }
    AttentionParams& p = launch.params;
    p.method.score_stage = GetParam().stage;
    p.method.score_budget = budget;
    p.method.mean_group_query = GetParam().mean_group_query;
    for (int32_t head = 0; head < 2; ++head) {
      const std::vector<double> expected = reference::score_query(p, {0, 0, head});
      const std::vector<float> actual = estimate(p, {0, 0, head});
      for (int32_t i = 0; i < 64; ++i) {
        EXPECT_NEAR(actual[i], expected[i], 1e-6 * std::abs(expected[i]))
            << "B " << budget << " element " << i;
      }
    }
  }
}

TEST(BernoulliElementTest, OfZeroNeverSucceedsAndTheLargestAlwaysDoes) {
  const BernoulliElement zero = bernoulli_element(0, 3, 4);
  EXPECT_EQ(zero.threshold, 0u);
  EXPECT_EQ(bernoulli_estimate(0, zero), 0);
  EXPECT_EQ(bernoulli_element(0, 0, 4).threshold, 0u);
  BernoulliElement largest = bernoulli_element(3, 3, 4);
  EXPECT_EQ(largest.threshold, 1u << 24);
  largest.successes = 4;
  EXPECT_EQ(bernoulli_estimate(-3, largest), -3);
}

// A draw k of 24 bits stands for k / 2^24, which is below 1/3 up to k = 5592405.
TEST(BernoulliElementTest, SucceedsBelowItsProbability) {
  EXPECT_EQ(bernoulli_element(1, 3, 4).threshold, 5592406u);
  EXPECT_EQ(bernoulli_element(1, 2, 4).threshold, 1u << 23);
  EXPECT_EQ(bernoulli_element(1e-30, 2, 4).threshold, 1u);
}

TEST(BernoulliElementTest, ThatIsNoNumberMakesTheEstimateNone) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const double magnitude : {kInfinity, std::numeric_limits<double>::quiet_NaN()}) {
    const BernoulliElement element = bernoulli_element(magnitude, kInfinity, 4);
    EXPECT_TRUE(std::isnan(bernoulli_estimate(static_cast<float>(magnitude), element))) << magnitude;
  }
  EXPECT_EQ(bernoulli_estimate(2, bernoulli_element(2, kInfinity, 4)), 0);
}

// Both draw with the same coordinates, one a draw at a time and one a Philox block of four.
TEST(BernoulliDrawsTest, CountFourElementsAsDrawUniformDoes) {
  const DrawRow row{.key = {11, 22}, .question = 33, .layer = 4, .head = 5, .position = 600};
  const BernoulliDraws draws{row, 96, 300};
  for (const int32_t i : {0, 4, 52, 92}) {
    const uint32_t threshold[4] = {0, 1u << 24, 5'000'000, 1u << 23};
    int32_t expected[4] = {}, actual[4] = {};
    for (int32_t b = 0; b < 300; ++b) {
      draws.count(b, i, threshold, actual);
      for (int k = 0; k < 4; ++k) {
        const double u = draw_uniform(row, bernoulli_draw(b, i + k, 96));
        expected[k] += u < threshold[k] * 0x1p-24 ? 1 : 0;
      }
    }
    for (int k = 0; k < 4; ++k) EXPECT_EQ(actual[k], expected[k]) << "element " << i + k;
    EXPECT_EQ(actual[0], 0);
    EXPECT_EQ(actual[1], 300);
  }
}

TEST(BernoulliPlan, FitsTheSharedMemoryOfEveryGpu) {
  AttentionParams p;
  p.batch = kMaxCudaBatch;
  p.num_kv_heads = 1;
  p.dtype = DType::kBFloat16;
  p.method.score_stage = ScoreStage::kBernoulliStrat;
  p.method.score_budget = 4;
  for (const int32_t shared_bytes : {166912, 101376, 232448}) {  // compute capability 8.0, 8.6 and 8.9, 9.0
    for (const int32_t head_dim : {32, 64, 96, 128, 256}) {
      for (const int32_t group : {1, 8, 9, 16}) {
        for (const int32_t max_queries : {1, 7}) {
          p.head_dim = head_dim;
          p.num_q_heads = group;
          const cuda::Plan plan = cuda::make_plan(
              p, {.num_queries = p.batch, .max_queries = max_queries, .max_length = 64},
              {.compute_capability = 80, .multiprocessors = 20, .shared_bytes_per_block = shared_bytes});
          EXPECT_LE(plan.score.shared_bytes, shared_bytes) << "head_dim " << head_dim << " group " << group;
          EXPECT_EQ(plan.score.warps, 8);
          EXPECT_EQ(plan.score.blocks, 40);
        }
      }
    }
  }
}

}  // namespace
}  // namespace allot::kernels
