// On the GPU as in dense_rows_test.cc: a sequence with a dense budget has the bytes of exact attention alone,
// whatever the estimator and the score stage of its batch mates.
#include <algorithm>

#include "cuda_launch.h"
#include "oracle.h"
#include "tests/kernels/methods.h"

namespace allot::kernels {
namespace {

using testing::CudaLaunch;
using testing::CudaTest;
using testing::Launch;
using testing::LaunchSpec;

class CudaDenseRows : public CudaTest, public ::testing::WithParamInterface<AttentionMethod> {};
INSTANTIATE_TEST_SUITE_P(Methods, CudaDenseRows, ::testing::ValuesIn(testing::every_method()),
                         testing::method_name);

constexpr int32_t kBudget = 64;  // a sample in every tile for flash

// Heads that choose together may read every key of a short row, and then are exact.
bool covers_keys(const AttentionMethod& method, const LaunchSpec& spec, int64_t sequence) {
  const int64_t heads =
      row_of(method.estimator).scope == Scope::kHead ? 1 : spec.num_q_heads / spec.num_kv_heads;
  return heads * spec.sequences[sequence].budget >= spec.sequences[sequence].length;
}

void expect_dense_rows_alone(const AttentionMethod& method, const LaunchSpec& spec) {
  Launch batch(spec);
  batch.params.method = method;
  CudaLaunch together(batch);
  together.run();
  const int64_t query_bytes = together.query_elements() * size_of(spec.dtype);
  for (int64_t b = 0; b < batch.params.batch; ++b) {
    LaunchSpec alone_spec = spec;
    alone_spec.sequences = {spec.sequences[b]};
    alone_spec.estimator = Estimator::kExact;
    Launch alone(alone_spec);
    alone.copy_sequence(batch, b, 0);
    CudaLaunch exact(alone);
    exact.run();
    const auto first = together.output_bytes().begin() + batch.params.query_start[b] * query_bytes;
    const bool same = std::equal(exact.output_bytes().begin(), exact.output_bytes().end(), first);
    if (spec.sequences[b].budget == kDenseBudget) {
      EXPECT_TRUE(same) << "sequence " << b << " of length " << spec.sequences[b].length;
    } else if ((method.estimator != Estimator::kExact && !covers_keys(method, spec, b)) ||
               method.score_stage != ScoreStage::kExact) {
      EXPECT_FALSE(same) << "sequence " << b << " of length " << spec.sequences[b].length
                         << " samples nothing";
    }
  }
}

TEST_P(CudaDenseRows, AreThoseOfExactAttentionAloneInDecode) {
  for (const int32_t head_dim : {64, 128, 256}) {
    LaunchSpec spec{.sequences = {{1, 1500, kDenseBudget}, {1, 900, kBudget}, {1, 17, kDenseBudget}},
                    .num_q_heads = 8,
                    .num_kv_heads = 2,
                    .head_dim = head_dim,
                    .dtype = DType::kBFloat16};
    expect_dense_rows_alone(GetParam(), spec);
    // Too many for one warp to index.
    for (int32_t b = 0; b < 40; ++b)
      spec.sequences.push_back({1, 100 + 7 * b, b % 3 == 0 ? kDenseBudget : kBudget});
    expect_dense_rows_alone(GetParam(), spec);
  }
}

TEST_P(CudaDenseRows, AreThoseOfExactAttentionAloneInPrefill) {
  for (const int32_t head_dim : {64, 256}) {
    expect_dense_rows_alone(GetParam(), {.sequences = {{70, 300, kDenseBudget},
                                                       {33, 200, kBudget},
                                                       {5, 65, kDenseBudget},
                                                       {90, 90, kBudget},
                                                       {2, 2, kDenseBudget}},
                                         .num_q_heads = 8,
                                         .num_kv_heads = 2,
                                         .head_dim = head_dim,
                                         .dtype = DType::kBFloat16});
  }
}

// One workspace and one set of bounds, as a decoded batch has them: the same sequence may be dense in one
// step and sampled in the next.
TEST_P(CudaDenseRows, FollowTheBudgetsOfEachLaunch) {
  const LaunchSpec spec{.sequences = {{1, 500, kDenseBudget}, {1, 500, kBudget}},
                        .num_q_heads = 4,
                        .num_kv_heads = 2,
                        .head_dim = 128,
                        .dtype = DType::kBFloat16};
  Launch batch(spec);
  batch.params.method = GetParam();
  CudaLaunch cuda(batch);
  cuda.run();
  const std::vector<unsigned char> first = cuda.output_bytes();
  std::swap(batch.budgets[0], batch.budgets[1]);
  cuda.run();
  const std::vector<unsigned char> swapped = cuda.output_bytes();
  std::swap(batch.budgets[0], batch.budgets[1]);
  cuda.run();
  EXPECT_TRUE(cuda.output_bytes() == first);
  if (GetParam() != AttentionMethod{.estimator = Estimator::kExact, .tile = 64}) {
    EXPECT_FALSE(swapped == first);
  }
}

}  // namespace
}  // namespace allot::kernels
