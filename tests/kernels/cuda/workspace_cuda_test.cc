// The workspace of a launch follows from its shapes and bounds alone: enough for every launch within the
// bounds, so it never falls when a bound grows, and close to the two bytes a key and query head that dominate
// it.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "kernels/attention_cuda.h"
#include "kernels/cuda/args.h"
#include "tests/kernels/cuda/device_limits.h"
#include "tests/kernels/methods.h"

namespace allot::kernels {
namespace {

// Only addresses; nothing follows them.
AttentionParams launch(Estimator estimator, int64_t batch) {
  AttentionParams p;
  p.batch = batch;
  p.num_q_heads = 32;
  p.num_kv_heads = 8;
  p.head_dim = 128;
  p.page_size = 16;
  p.max_pages = kMaxCudaLength / 16;
  p.num_pages = 1 << 24;
  p.dtype = DType::kBFloat16;
  p.scale = 0.088f;
  p.query = reinterpret_cast<const void*>(0x10000);
  p.query_stride = 4096;
  p.key_pages = p.value_pages = p.query;
  p.page_table = p.lengths = p.budgets = reinterpret_cast<const int32_t*>(0x20000);
  p.query_start = reinterpret_cast<const int64_t*>(0x30000);
  p.out = reinterpret_cast<void*>(0x40000);
  p.method.estimator = estimator;
  p.draws = reinterpret_cast<const SequenceDraws*>(0x50000);
  return p;
}

class CudaWorkspaceBytes : public ::testing::TestWithParam<Estimator> {
 protected:
  size_t bytes(int64_t batch, int32_t max_length, int32_t max_budget, int32_t max_queries = 1,
               bool any_dense = false) {
    return cuda_workspace_bytes(launch(GetParam(), batch),
                                {.num_queries = batch * max_queries,
                                 .max_queries = max_queries,
                                 .max_length = max_length,
                                 .max_budget = max_budget,
                                 .any_dense = any_dense},
                                kH200);
  }
};
INSTANTIATE_TEST_SUITE_P(Kernels, CudaWorkspaceBytes, ::testing::ValuesIn(testing::every_estimator()),
                         [](const auto& estimator) { return std::string(name(estimator.param)); });

TEST_P(CudaWorkspaceBytes, NeverFallWhenABoundGrows) {
  for (const int32_t max_queries : {1, 7, 600}) {
    for (const int64_t batch : {1, 6, 64, 133}) {
      size_t last = 0;
      for (int32_t max_length = 600; max_length <= kMaxCudaLength; max_length = max_length * 5 / 4 + 1) {
        const size_t now = bytes(batch, max_length, 128, max_queries);
        ASSERT_GE(now, last) << "batch " << batch << " max_length " << max_length << " max_queries "
                             << max_queries;
        ASSERT_GE(bytes(batch, max_length, 128, max_queries, true), now)
            << "any_dense, batch " << batch << " max_length " << max_length << " max_queries " << max_queries;
        last = now;
      }
      last = 0;
      for (const int32_t max_budget : {0, 1, 8, 31, 32, 33, 128, 256, 512, 2048, 65536, kMaxCudaLength}) {
        const size_t now = bytes(batch, 4096, max_budget, max_queries);
        ASSERT_GE(now, last) << "batch " << batch << " max_budget " << max_budget << " max_queries "
                             << max_queries;
        last = now;
      }
    }
  }
  size_t last = 0;
  for (int64_t batch = 1; batch <= 1024; batch = batch * 4 / 3 + 1) {
    const size_t now = bytes(batch, 32768, 128);
    ASSERT_GE(now, last) << "batch " << batch;
    last = now;
  }
}

TEST_P(CudaWorkspaceBytes, NeverFallWhenQueriesAreAdded) {
  size_t last = 0;
  for (const int32_t max_queries : {1, 2, 3, 16, 64, 100, 600, 4096}) {
    const size_t now = bytes(2, 4096, 32, max_queries);
    ASSERT_GE(now, last) << "max_queries " << max_queries;
    last = now;
  }
}

// A sampled decode step at 16 x 32k, 32 query heads: 32 MiB of weights, and no more than half of that beside
// them.
TEST_P(CudaWorkspaceBytes, AreDominatedByTheWeightsInDecode) {
  const size_t weights = size_t{2} * 16 * 32 * 32768;
  // Exact decoding has the sums of the parts of a row, too.
  const size_t parts = size_t{4} * 128 * 16 * 32 * cuda::exact_part_count(32768, cuda::exact_most_parts(8));
  EXPECT_LE(bytes(16, 32768, 128), weights * 3 / 2 + (GetParam() == Estimator::kExact ? parts : 0));
  if (GetParam() != Estimator::kExact) {
    EXPECT_GE(bytes(16, 32768, 128), weights);
  }
}

TEST_P(CudaWorkspaceBytes, AreAFunctionOfTheirArguments) {
  EXPECT_EQ(bytes(6, 32768, 128), bytes(6, 32768, 128));
}

}  // namespace
}  // namespace allot::kernels
