// Causal prefill on the GPU against the reference: ragged prompts, decoding sequences among them, and the
// Bernoulli score stage, which exact values isolate.
#include <cstdio>

#include "../bernoulli_stage.h"
#include "cuda_launch.h"
#include "kernels/sampling.h"
#include "oracle.h"
#include "tests/kernels/methods.h"

namespace allot::kernels {
namespace {

using testing::Comparison;
using testing::CudaTest;
using testing::Launch;
using testing::LaunchSpec;

class CudaPrefill : public CudaTest, public ::testing::WithParamInterface<Estimator> {
 protected:
  void report(const char* what, const Comparison& total) {
    std::printf("[ measured ] %s, %s: %lld of %lld sampled rows took other keys than the reference\n",
                std::string(name(GetParam())).c_str(), what, static_cast<long long>(total.other_keys),
                static_cast<long long>(total.sampled_rows));
  }
};
INSTANTIATE_TEST_SUITE_P(Kernels, CudaPrefill, ::testing::ValuesIn(testing::every_estimator()),
                         [](const auto& estimator) { return std::string(name(estimator.param)); });

// Of some 12 samples a row, one in a few hundred may lie within rounding of a boundary.
constexpr double kOtherKeys = 0.04;

TEST_P(CudaPrefill, OfRaggedPromptsFollowsTheReference) {
  struct Shape {
    int32_t head_dim, group, num_kv_heads, page_size;
  };
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    Comparison total;
    for (const Shape& shape : {Shape{64, 1, 2, 16}, Shape{64, 7, 1, 64}, Shape{96, 3, 1, 32},
                               Shape{128, 4, 2, 16}, Shape{128, 16, 1, 640}, Shape{256, 8, 1, 128},
                               Shape{64, 5, 1, 16}, Shape{128, 2, 1, 32}, Shape{32, 2, 4, 16}}) {
      LaunchSpec spec{.sequences = {{1, 1, 8},
                                    {2, 2, 8},
                                    {17, 17, 8},
                                    {63, 63, 12},
                                    {64, 64, 8},
                                    {1, 300, 12},
                                    {65, 65, 8},
                                    {9, 97, 13},
                                    {3, 33, 0},
                                    {5, 129, kDenseBudget},
                                    {0, 40, 8},
                                    {1, 129, kDenseBudget},
                                    {130, 200, 10},
                                    {16, 400, 20}},
                      .num_q_heads = shape.group * shape.num_kv_heads,
                      .num_kv_heads = shape.num_kv_heads,
                      .head_dim = shape.head_dim,
                      .page_size = shape.page_size,
                      .dtype = dtype,
                      .estimator = GetParam(),
                      .seed = static_cast<uint32_t>(shape.head_dim + shape.group)};
      Launch launch(spec);
      launch.params.method.tile = shape.group % 2 == 0 ? 64 : 128;
      total.add(testing::compare(launch.params, testing::run_cuda(launch)));
    }
    report("ragged prompts", total);
    testing::expect_near_plain(total, kOtherKeys, std::string(name(dtype)));
  }
}

TEST_P(CudaPrefill, OfAPromptOf600TokensFollowsTheReference) {
  Launch launch({.sequences = {{600, 600, 10}, {511, 512, 8}, {1, 513, 16}},
                 .num_q_heads = 4,
                 .num_kv_heads = 2,
                 .head_dim = 64,
                 .page_size = 16,
                 .dtype = DType::kBFloat16,
                 .estimator = GetParam(),
                 .score_deviation = 3});
  launch.params.method.tile = 128;
  const Comparison total = testing::compare(launch.params, testing::run_cuda(launch));
  report("600 tokens", total);
  testing::expect_near_plain(total, kOtherKeys, "600 tokens");
}

// Budgets beyond what one warp holds, and a bound that allows them, may take other kernels.
TEST_P(CudaPrefill, WithLargeBudgetsFollowsTheReference) {
  LaunchSpec spec{.sequences = {{40, 300, 50}, {20, 20, 400}, {1, 300, 90}},
                  .num_q_heads = 4,
                  .num_kv_heads = 1,
                  .head_dim = 128,
                  .page_size = 64,
                  .dtype = DType::kFloat16,
                  .estimator = GetParam()};
  for (const int32_t max_budget : {400, 4096, 65536}) {
    Launch launch(spec);
    launch.params.method.tile = 64;
    LaunchBounds bounds = testing::tight_bounds(launch.params);
    bounds.max_budget = max_budget;
    const Comparison total = testing::compare(launch.params, testing::CudaLaunch(launch, bounds).run());
    testing::expect_near_plain(total, 0.25, "max_budget " + std::to_string(max_budget));
  }
}

// Every 61st row of a long prompt, the first and the last ones.
TEST_P(CudaPrefill, OfAPromptOf4096TokensFollowsTheReference) {
  Launch launch({.sequences = {{4096, 4096, 16}, {7, 4000, 16}},
                 .num_q_heads = 4,
                 .num_kv_heads = 1,
                 .head_dim = 128,
                 .page_size = 64,
                 .dtype = DType::kBFloat16,
                 .estimator = GetParam()});
  const std::vector<double> out = testing::run_cuda(launch);
  std::vector<reference::Row> rows = testing::rows_of(launch.params);
  std::erase_if(rows, [](const reference::Row& row) {
    return row.sequence == 0 && row.query > 3 && row.query < 4090 &&
           (row.query % 61 != 0 || row.head % 2 != 0);
  });
  const Comparison total = testing::compare(launch.params, out, rows);
  report("4096 tokens", total);
  testing::expect_near_plain(total, 0.08, "4096 tokens");
}

class CudaScoreStage : public CudaTest, public ::testing::WithParamInterface<testing::BernoulliStage> {};
INSTANTIATE_TEST_SUITE_P(Kernels, CudaScoreStage, testing::bernoulli_stages(), testing::stage_name);

// Rows whose Bernoulli query differs in one draw (a uniform number within rounding of |q_i| / max|q|) count
// as rows of other keys.
TEST_P(CudaScoreStage, HasTheReferencesQueryInDecodeAndPrefill) {
  struct Shape {
    int32_t head_dim, group, num_kv_heads;
  };
  for (const DType dtype : {DType::kBFloat16, DType::kFloat16}) {
    for (const int32_t budget : {1, 4, 32}) {
      Comparison total;
      for (const Shape& shape : {Shape{64, 1, 2}, Shape{64, 4, 2}, Shape{96, 2, 1}, Shape{128, 7, 1},
                                 Shape{128, 16, 1}, Shape{256, 8, 1}}) {
        for (const bool prefill : {false, true}) {
          LaunchSpec spec{.sequences = {{1, 97, 8}, {1, 300, 8}, {1, 1, 8}},
                          .num_q_heads = shape.group * shape.num_kv_heads,
                          .num_kv_heads = shape.num_kv_heads,
                          .head_dim = shape.head_dim,
                          .page_size = 32,
                          .dtype = dtype,
                          .seed = static_cast<uint32_t>(shape.head_dim + budget)};
          if (prefill) spec.sequences.push_back({40, 90, 8});
          Launch launch(spec);
          launch.params.method.score_stage = GetParam().stage;
          launch.params.method.score_budget = budget;
          launch.params.method.mean_group_query = GetParam().mean_group_query;
          total.add(testing::compare(launch.params, testing::run_cuda(launch)));
        }
      }
      testing::expect_near_plain(total, 0.01, std::string(name(dtype)) + " B " + std::to_string(budget));
    }
  }
}

TEST_P(CudaScoreStage, ComposesWithEveryValueEstimator) {
  for (const Estimator estimator : testing::every_estimator()) {
    Launch launch({.sequences = {{1, 200, 8}, {30, 130, 8}, {1, 64, 0}, {1, 400, kDenseBudget}},
                   .num_q_heads = 8,
                   .num_kv_heads = 2,
                   .head_dim = 128,
                   .dtype = DType::kFloat16,
                   .estimator = estimator});
    launch.params.method.tile = 64;
    launch.params.method.score_stage = GetParam().stage;
    launch.params.method.score_budget = 8;
    launch.params.method.mean_group_query = GetParam().mean_group_query;
    testing::expect_near_plain(testing::compare(launch.params, testing::run_cuda(launch)), 0.06,
                               std::string(name(estimator)));
  }
}

TEST_P(CudaScoreStage, OfAQueryOfZerosIsUniformAttention) {
  Launch launch({.sequences = {{1, 5, 8}, {4, 100, 8}},
                 .num_q_heads = 4,
                 .num_kv_heads = 2,
                 .head_dim = 64,
                 .dtype = DType::kBFloat16});
  for (int32_t query = 0; query < 5; ++query) {
    for (int32_t i = 0; i < 4 * 64; ++i) launch.set_query(query, 0, i, 0);
  }
  launch.params.method.score_stage = GetParam().stage;
  launch.params.method.score_budget = 2;
  launch.params.method.mean_group_query = GetParam().mean_group_query;
  testing::expect_near_plain(testing::compare(launch.params, testing::run_cuda(launch)), 0, "zero query");
}

}  // namespace
}  // namespace allot::kernels
