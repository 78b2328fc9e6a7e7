// A sequence with a dense budget is computed with exact scores and exact attention, whatever the estimator
// and the score stage of its batch mates: bit for bit what the sequence alone has under exact attention.
#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/reference.h"
#include "tests/kernels/launch.h"
#include "tests/kernels/methods.h"
#include "tests/repeats.h"

namespace allot::kernels {
namespace {

using testing::Launch;
using testing::LaunchSpec;

class DenseRows : public ::testing::TestWithParam<AttentionMethod> {};
INSTANTIATE_TEST_SUITE_P(Methods, DenseRows, ::testing::ValuesIn(testing::every_method()),
                         testing::method_name);

// Decode steps and prompts, dense ones first, last and between sampled ones.
LaunchSpec mixed_launch(DType dtype) {
  return {.sequences = {{1, 97, kDenseBudget},
                        {1, 60, 8},
                        {1, 33, kDenseBudget},
                        {20, 45, kDenseBudget},
                        {20, 45, 8},
                        {7, 7, kDenseBudget}},
          .num_q_heads = 8,
          .num_kv_heads = 2,
          .head_dim = 64,
          .dtype = dtype};
}

// The sequence by itself under exact attention.
std::vector<double> alone(const Launch& batch, const LaunchSpec& spec, int64_t sequence,
                          const std::function<std::vector<double>(Launch&)>& attend) {
  LaunchSpec alone_spec = spec;
  alone_spec.sequences = {spec.sequences[sequence]};
  alone_spec.estimator = Estimator::kExact;
  Launch launch(alone_spec);
  launch.copy_sequence(batch, sequence, 0);
  return attend(launch);
}

void expect_dense_rows_alone(const AttentionMethod& method, DType dtype,
                             const std::function<std::vector<double>(Launch&)>& attend) {
  const LaunchSpec spec = mixed_launch(dtype);
  Launch batch(spec);
  batch.params.method = method;
  const std::vector<double> together = attend(batch);
  const int64_t query = int64_t{spec.num_q_heads} * spec.head_dim;
  for (int64_t b = 0; b < batch.params.batch; ++b) {
    const std::vector<double> expected = alone(batch, spec, b, attend);
    const auto first = together.begin() + batch.params.query_start[b] * query;
    const bool same = std::equal(expected.begin(), expected.end(), first);
    if (spec.sequences[b].budget == kDenseBudget) {
      EXPECT_TRUE(same) << "sequence " << b << " in " << name(dtype);
    } else if (method.estimator != Estimator::kExact || method.score_stage != ScoreStage::kExact) {
      EXPECT_FALSE(same) << "sequence " << b << " samples nothing in " << name(dtype);
    }
  }
}

TEST_P(DenseRows, AreThoseOfExactAttentionAloneInEveryInstructionSet) {
  for (const cpu::Isa isa : testing::supported_isas()) {
    SCOPED_TRACE(cpu::name(isa));
    for (const DType dtype : {DType::kFloat32, DType::kBFloat16}) {
      // One thread alone: in the release build.
      for (int threads = kUnderSanitizers ? 2 : 1; threads <= 2; ++threads) {
        expect_dense_rows_alone(GetParam(), dtype, [&](Launch& launch) { return launch.run(isa, threads); });
      }
    }
  }
}

TEST_P(DenseRows, AreThoseOfExactAttentionAloneInTheReference) {
  expect_dense_rows_alone(GetParam(), DType::kFloat32,
                          [](Launch& launch) { return reference::attend(launch.params); });
}

}  // namespace
}  // namespace allot::kernels
