// Content of device arrays that contradicts the bounds: the sequence's output is NaN, its mates are as they
// were, and check_cuda names sequence and value until the next launch.
#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "cuda_launch.h"
#include "kernels/attention_fault_cuda.h"
#include "tests/names.h"

namespace allot::kernels {
namespace {

using testing::CudaLaunch;
using testing::CudaTest;
using testing::Launch;
using testing::LaunchSpec;

constexpr size_t kFaulty = 1;

// Queries of each sequence, 1 = decode, and whether the rows are as many as the kernel for short rows serves.
struct Kind {
  const char* name;
  int32_t queries;
  bool many_rows;
};

// A batch whose sequence 1 a test breaks, on host arrays that outlive it.
class CudaFaults : public CudaTest, public ::testing::WithParamInterface<Kind> {
 protected:
  explicit CudaFaults()
      : launch_({.sequences = {{GetParam().queries, 100, 8},
                               {GetParam().queries, 200, 8},
                               {GetParam().queries, 300, 9},
                               {GetParam().queries, 50, 8},
                               {GetParam().queries, 64, 0}},
                 .num_q_heads = 8,
                 .num_kv_heads = 2,
                 .head_dim = 64,
                 .page_size = 16,
                 .dtype = DType::kBFloat16,
                 .estimator = Estimator::kSys}),
        lengths_(launch_.params.lengths, launch_.params.lengths + 5),
        pages_(launch_.params.page_table, launch_.params.page_table + 5 * launch_.params.max_pages) {
    launch_.params.method.tile = 64;
    launch_.params.lengths = lengths_.data();
    launch_.params.page_table = pages_.data();
  }

  static void choose_kernel(CudaLaunch& cuda) {
    if (GetParam().many_rows) cuda.limits.multiprocessors = 1;
  }

  // Breaks the launch with `break_it`, expects the fault, mends it with `mend` and expects the first result
  // again.
  template <class Break, class Mend>
  void expect_fault(const std::string& value, const Break& break_it, const Mend& mend) {
    const LaunchBounds bounds = testing::tight_bounds(launch_.params);
    CudaLaunch cuda(launch_, bounds);
    choose_kernel(cuda);
    const std::vector<double> expected = cuda.run();
    break_it();
    EXPECT_THAT(cuda.fault(), Names("sequence 1", value));
    const std::vector<double> out = cuda.output();
    const auto per_sequence = static_cast<size_t>(GetParam().queries * cuda.query_elements());
    for (size_t i = 0; i < out.size(); ++i) {
      if (i / per_sequence == kFaulty) {
        ASSERT_TRUE(std::isnan(out[i])) << value << ": element " << i << " is " << out[i];
      } else {
        ASSERT_EQ(out[i], expected[i]) << value << ": element " << i << " of sequence " << i / per_sequence;
      }
    }
    mend();
    EXPECT_EQ(cuda.run(), expected) << "the launch after the fault " << value;
  }

  void expect_bad_value(int32_t& place, int32_t bad) {
    const int32_t good = place;
    expect_fault(
        std::to_string(bad), [&] { place = bad; }, [&] { place = good; });
  }

  Launch launch_;
  std::vector<int32_t> lengths_, pages_;
};
INSTANTIATE_TEST_SUITE_P(Kernels, CudaFaults,
                         ::testing::Values(Kind{"decode", 1, false}, Kind{"prefill", 3, false},
                                           Kind{"short_rows", 1, true}),
                         [](const auto& kind) { return std::string(kind.param.name); });

TEST_P(CudaFaults, ALengthOutsideTheBoundsIsNamed) {
  for (const int32_t bad : {301, 100000, std::numeric_limits<int32_t>::max(), -5, 0})
    expect_bad_value(lengths_[1], bad);
}

// For those who queue launches before they look: the copy behind a good launch still has the fault.
TEST_P(CudaFaults, AreInEveryCopyUntilTheWorkspaceIsReset) {
  CudaLaunch cuda(launch_, testing::tight_bounds(launch_.params));
  choose_kernel(cuda);
  (void)cuda.run();
  AttentionFault* faults = nullptr;
  testing::require(cudaMallocHost(reinterpret_cast<void**>(&faults), 4 * sizeof(AttentionFault)),
                   "cudaMallocHost");
  copy_fault_cuda(cuda.workspace(), &faults[0], cuda.stream());
  const int32_t good = lengths_[kFaulty];
  lengths_[kFaulty] = 301;
  cuda.upload();
  cuda.queue();
  copy_fault_cuda(cuda.workspace(), &faults[1], cuda.stream());
  lengths_[kFaulty] = good;
  cuda.upload();
  cuda.queue();
  copy_fault_cuda(cuda.workspace(), &faults[2], cuda.stream());
  reset_cuda_workspace(cuda.workspace(), cuda.stream());
  cuda.queue();
  copy_fault_cuda(cuda.workspace(), &faults[3], cuda.stream());
  testing::require(cudaStreamSynchronize(cuda.stream()), "cudaStreamSynchronize");
  for (const int i : {0, 3}) EXPECT_NO_THROW(throw_fault(faults[i])) << i;
  for (const int i : {1, 2})
    EXPECT_THAT([&] { throw_fault(faults[i]); },
                ::testing::ThrowsMessage<InvalidArgument>(Names("sequence 1", 301, 300)))
        << i;
  testing::require(cudaFreeHost(faults), "cudaFreeHost");
}

TEST_P(CudaFaults, FewerKeysThanQueriesAreNamed) {
  expect_bad_value(lengths_[1], GetParam().queries - 1);
}

TEST_P(CudaFaults, APageOutsideThePoolIsNamed) {
  const auto num_pages = static_cast<int32_t>(launch_.params.num_pages);
  const int32_t row = launch_.params.max_pages;
  // The first, one in the middle, and the last of the 13 pages of 200 tokens.
  for (const int32_t page : {0, 7, 12}) {
    for (const int32_t bad : {num_pages, -1, std::numeric_limits<int32_t>::max()}) {
      expect_bad_value(pages_[row + page], bad);
    }
  }
}

TEST_P(CudaFaults, ABudgetOutsideTheBoundsIsNamed) {
  for (const int32_t bad :
       {10, 65536, std::numeric_limits<int32_t>::max(), -2, std::numeric_limits<int32_t>::min()}) {
    expect_bad_value(launch_.budgets[1], bad);
  }
}

TEST_P(CudaFaults, ADenseBudgetThatTheBoundsExcludeIsNamed) {
  expect_bad_value(launch_.budgets[1], kDenseBudget);
}

TEST_P(CudaFaults, FlashWithFewerSamplesThanTilesIsNamed) {
  launch_.params.method.estimator = Estimator::kFlash;
  for (const int32_t bad : {1, 3}) expect_bad_value(launch_.budgets[1], bad);  // 4 tiles of 64 keys
}

// A page of no visible token may hold anything; a budget has no meaning under exact.
TEST_P(CudaFaults, WhatNoRowNeedsIsNoFault) {
  CudaLaunch cuda(launch_);
  choose_kernel(cuda);
  pages_[launch_.params.max_pages + 13] = -7;
  EXPECT_EQ(cuda.fault(), "no fault");
  launch_.params.method.estimator = Estimator::kExact;
  launch_.budgets[1] = -9;
  EXPECT_EQ(cuda.fault(), "no fault");
}

// One query a sequence leaves query_start nothing to say.
TEST_P(CudaFaults, ASequenceWithMoreQueriesThanTheBoundIsNamed) {
  if (GetParam().queries == 1) GTEST_SKIP() << "a decode launch does not read query_start";
  LaunchBounds bounds = testing::tight_bounds(launch_.params);
  std::vector<int64_t> starts(launch_.params.query_start, launch_.params.query_start + 6);
  CudaLaunch cuda(launch_, bounds);
  choose_kernel(cuda);
  starts[2] += 1;  // sequence 1 takes a query of sequence 2
  launch_.params.query_start = starts.data();
  EXPECT_THAT(cuda.fault(), Names("sequence 1", GetParam().queries + 1));
  cuda.output();  // guards
}

TEST_P(CudaFaults, FallingQueryStartsAreNamed) {
  if (GetParam().queries == 1) GTEST_SKIP() << "a decode launch does not read query_start";
  LaunchBounds bounds = testing::tight_bounds(launch_.params);
  std::vector<int64_t> starts(launch_.params.query_start, launch_.params.query_start + 6);
  CudaLaunch cuda(launch_, bounds);
  choose_kernel(cuda);
  for (const int64_t bad : {int64_t{-4}, int64_t{1} << 40}) {
    starts[2] = bad;
    launch_.params.query_start = starts.data();
    EXPECT_THAT(cuda.fault(), Names("sequence")) << "query_start[2] = " << bad;
    cuda.output();
  }
}

}  // namespace
}  // namespace allot::kernels
