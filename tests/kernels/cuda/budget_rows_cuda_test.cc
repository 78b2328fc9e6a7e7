// Budgets that count value rows of a KV head, on the GPU: the same bytes as for as many samples of its heads,
// the reference's rows where they are no multiple of the heads, as many as asked for, and the right mean.
#include <string>

#include "cuda_launch.h"
#include "kernels/reference.h"
#include "oracle.h"

namespace allot::kernels {
namespace {

using testing::CudaLaunch;
using testing::CudaTest;
using testing::Launch;
using testing::LaunchSpec;

constexpr int32_t kGroup = 3;

class CudaBudgetRows : public CudaTest, public ::testing::WithParamInterface<Estimator> {};
INSTANTIATE_TEST_SUITE_P(Kernels, CudaBudgetRows, ::testing::Values(Estimator::kJoint, Estimator::kLevel),
                         [](const auto& estimator) { return std::string(name(estimator.param)); });

LaunchSpec rows_launch(Estimator estimator, std::vector<testing::Sequence> sequences) {
  return {.sequences = std::move(sequences),
          .num_q_heads = 2 * kGroup,
          .num_kv_heads = 2,
          .head_dim = 64,
          .dtype = DType::kFloat16,
          .estimator = estimator,
          .score_deviation = 2,
          .seed = 31};
}

// One warp, four and eight a group, one block and several, decode and prefill.
TEST_P(CudaBudgetRows, GiveTheSameBytesAsAsManySamplesOfTheHeads) {
  for (const std::vector<testing::Sequence>& sequences :
       {std::vector<testing::Sequence>{{1, 300, 2}, {1, 97, 32}, {1, 1000, 1}, {1, 9, 0}},
        std::vector<testing::Sequence>{{1, 3000, 2}, {1, 97, 32}, {1, 1500, kDenseBudget}},
        std::vector<testing::Sequence>{{1, 9000, 300}, {1, 97, 33}, {1, 5000, 4}},
        std::vector<testing::Sequence>{{70, 70, 5}, {33, 200, 16}, {1, 1, 1}}}) {
    Launch launch(rows_launch(GetParam(), sequences));
    CudaLaunch of_samples(launch);
    of_samples.run();
    launch.params.method.unit = BudgetUnit::kRows;
    for (int32_t& budget : launch.budgets) budget *= budget == kDenseBudget ? 1 : kGroup;
    CudaLaunch of_rows(launch);
    of_rows.run();
    EXPECT_TRUE(of_rows.output_bytes() == of_samples.output_bytes()) << sequences.size() << " sequences";
  }
}

TEST_P(CudaBudgetRows, FollowTheReferenceWhereTheyAreNoMultipleOfTheHeads) {
  for (const int32_t rows : {1, 2, 5, 50, 400}) {
    Launch launch(rows_launch(GetParam(), {{1, 700, rows}, {1, 5000, rows}, {40, 90, rows}}));
    launch.params.method.unit = BudgetUnit::kRows;
    testing::expect_near_plain(testing::compare(launch.params, testing::run_cuda(launch)), 0.25,
                               std::to_string(rows) + " rows");
  }
}

TEST_P(CudaBudgetRows, AreAsManyAsAskedFor) {
  for (const int32_t rows : {1, 4, 17}) {
    Launch launch(rows_launch(GetParam(), {{1, 300, rows}, {1, 2000, rows}, {20, 120, rows}}));
    launch.params.method.unit = BudgetUnit::kRows;
    CudaLaunch cuda(launch);
    const auto weights = launch.key_weights([&] { return cuda.run(); });
    for (size_t query = 0; query < 22; ++query) {
      for (int32_t group = 0; group < 2; ++group) {
        int32_t read = 0;
        for (size_t key = 0; key < weights.front().size(); ++key) {
          bool by_some = false;
          for (int32_t head = group * kGroup; head < (group + 1) * kGroup; ++head)
            by_some |= weights[query * 2 * kGroup + static_cast<size_t>(head)][key] != 0;
          read += by_some;
        }
        // A draw within rounding of a boundary may be lost, or fall on a neighbour that is read anyway.
        EXPECT_LE(read, GetParam() == Estimator::kLevel ? rows + 1 : rows) << "query " << query;
        EXPECT_GE(read, GetParam() == Estimator::kLevel ? 0 : rows - 1) << "query " << query;
      }
    }
  }
}

TEST_P(CudaBudgetRows, HaveExactAttentionAsTheMeanOfEveryHead) {
  for (const int32_t rows : {2, 4}) {
    LaunchSpec spec = rows_launch(GetParam(), std::vector<testing::Sequence>(4000, {1, 70, rows}));
    spec.repeat_first = true;
    Launch launch(spec);
    launch.params.method.unit = BudgetUnit::kRows;
    const std::vector<double> outputs = testing::run_cuda(launch);
    AttentionParams exact = launch.params;
    exact.method = {.estimator = Estimator::kExact};
    exact.batch = 1;
    const std::vector<double> expected = reference::attend(exact);
    testing::MeanEstimate mean(expected.size());
    for (size_t first = 0; first < outputs.size(); first += expected.size()) mean.add(&outputs[first]);
    EXPECT_LT(mean.largest_z(expected, 1e-4), 4.8) << rows << " rows";
    EXPECT_GT(mean.standard_error(0), 1e-4) << "the rows must leave something to estimate";
  }
}

}  // namespace
}  // namespace allot::kernels
