// How launches of exact decoding are cut: shared memory within every GPU's limit, warps, and parts that cover
// every row.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "kernels/cuda/args.h"
#include "kernels/cuda/plan.h"
#include "tests/kernels/cuda/device_limits.h"
#include "tests/kernels/cuda/plan_launch.h"

namespace allot::kernels::cuda {
namespace {

// To the one of 16-bit keys where there are such, which has smaller stages.
TEST(CudaPlan, OfSplitKeysLeavesDenseSequencesToAKernelOfExactDecoding) {
  const int8_t plane = 0;
  const int32_t budget = 0;  // only whether there are some matters
  for (const int32_t group : {1, 4, 8, 9, 16}) {
    AttentionParams p = launch({.estimator = Estimator::kSys, .batch = 64, .group = group, .head_dim = 128});
    p.budgets = &budget;
    LaunchBounds bounds = decode(64, 4096, 32);
    bounds.any_dense = true;
    const Plan without = make_plan(p, bounds, kDevices[0]);
    p.split = {.high = &plane, .low = &plane};
    for (const bool by_planes : {false, true}) {
      p.key_pages = by_planes ? nullptr : &plane;
      const Plan plan = make_plan(p, bounds, kDevices[0]);
      EXPECT_GE(plan.exact_decode.warps, 1) << group;
      EXPECT_EQ(plan.exact_decode.column_tiles, without.exact_decode.column_tiles) << group;
      EXPECT_EQ(plan.exact_decode.shared_bytes > without.exact_decode.shared_bytes, by_planes) << group;
      EXPECT_FALSE(plan.dense_left) << group;
    }
  }
}

TEST(CudaPlan, SharedMemoryOfExactDecodingFitsEveryGpu) {
  for (const DeviceLimits& device : kDevices) {
    for (const int32_t head_dim : kHeadDims) {
      for (const int32_t group : kGroups) {
        for (const int64_t batch : {int64_t{1}, int64_t{kMaxCudaBatch}}) {
          const AttentionParams p =
              launch({.estimator = Estimator::kExact, .batch = batch, .group = group, .head_dim = head_dim});
          const ScorePlan exact = make_plan(p, decode(batch, 4096), device).exact_decode;
          const std::string what = describe(p, decode(batch, 4096));
          ASSERT_LE(exact.shared_bytes, device.shared_bytes_per_block) << what;
          // With thousands of sequences the small ones may have no room.
          if (exact.warps == 0 && batch > 1 && device.shared_bytes_per_block < 128 * 1024) continue;
          ASSERT_GE(exact.warps, 1) << what;
          ASSERT_GT(exact.threads, 32 * exact.warps) << "nobody adds, " << what;
        }
      }
    }
  }
}

// How many warps share a part decides in which order it is added up, so launches of the usual sizes have the
// same.
TEST(CudaPlan, ExactDecodingHasTheSameWarpsForThousandsOfSequences) {
  const auto warps = [](int64_t batch, int32_t head_dim) {
    const AttentionParams p = launch({.estimator = Estimator::kExact, .batch = batch, .head_dim = head_dim});
    return make_plan(p, decode(batch, 4096), kH200).exact_decode.warps;
  };
  for (const int32_t head_dim : {64, 128}) {
    EXPECT_EQ(warps(3100, head_dim), 8) << head_dim;
    EXPECT_EQ(warps(3100, head_dim), 8) << head_dim;
  }
  EXPECT_LT(warps(kMaxCudaBatch, 128), 8) << "kernels/attention_cuda.h names this limit";
}

// Dense sequences with a single query have a kernel that reads keys and values once. Where there are no
// others in the launch, nothing else runs.
TEST(CudaPlan, DenseRowsOfSingleQueriesHaveAKernelOfTheirOwn) {
  struct Kernels {
    bool exact_decode;
    bool exact_alone;
    bool dense_score;
    bool operator==(const Kernels&) const = default;
  };
  const auto kernels = [](Estimator estimator, ScoreStage stage, bool any_dense, int32_t max_queries) {
    AttentionParams p = launch({.estimator = estimator, .batch = 4});
    const int32_t budgets[4] = {};
    p.budgets = budgets;
    p.method.score_stage = stage;
    LaunchBounds bounds = decode(4 * max_queries, 4096);
    bounds.max_queries = max_queries;
    bounds.any_dense = any_dense;
    const Plan plan = make_plan(p, bounds, kH200);
    return Kernels{plan.exact_decode.warps > 0, plan.exact_alone, plan.dense_score.warps > 0};
  };
  using enum ScoreStage;
  EXPECT_EQ(kernels(Estimator::kExact, kExact, false, 1), (Kernels{true, true, false}));
  EXPECT_EQ(kernels(Estimator::kExact, kExact, true, 1), (Kernels{true, true, false}));
  EXPECT_EQ(kernels(Estimator::kExact, kExact, false, 3), (Kernels{true, false, false}));
  EXPECT_EQ(kernels(Estimator::kExact, kBernoulli, false, 1), (Kernels{false, false, false}));
  EXPECT_EQ(kernels(Estimator::kExact, kBernoulli, true, 1), (Kernels{true, false, false}));
  EXPECT_EQ(kernels(Estimator::kExact, kBernoulli, true, 3), (Kernels{true, false, true}));
  EXPECT_EQ(kernels(Estimator::kSys, kExact, false, 1), (Kernels{false, false, false}));
  EXPECT_EQ(kernels(Estimator::kSys, kExact, true, 1), (Kernels{true, false, false}));
  EXPECT_EQ(kernels(Estimator::kSys, kExact, true, 3), (Kernels{true, false, false}));
  EXPECT_EQ(kernels(Estimator::kSys, kBernoulli, true, 1), (Kernels{true, false, false}));
  EXPECT_EQ(kernels(Estimator::kSys, kBernoulli, true, 3), (Kernels{true, false, true}));
}

TEST(CudaPlan, PartsOfExactDecodingCoverEveryRowWithinTheBound) {
  for (const int32_t num_kv_heads : {1, 2, 3, 8, 32, 512}) {
    AttentionParams p = launch({.estimator = Estimator::kExact});
    p.num_kv_heads = num_kv_heads;
    p.num_q_heads = 4 * num_kv_heads;
    const int32_t most = exact_most_parts(num_kv_heads);
    int32_t needed = 1;
    for (int32_t keys = 1; keys <= kMaxCudaLength; ++keys) {
      const int32_t parts = exact_part_count(keys, most);
      const int32_t of_span = exact_span_parts(keys, most);
      const int32_t spans = exact_span_count(keys, most);
      SCOPED_TRACE(fmt::format("{} keys, {} KV heads", keys, num_kv_heads));
      ASSERT_LE(parts, kMostExactParts);
      ASSERT_LE(of_span, kMostSpanParts);
      ASSERT_TRUE(std::has_single_bit(static_cast<uint32_t>(of_span)));
      ASSERT_LE(spans, kMostExactSpans);
      ASSERT_GE(spans * of_span, parts);
      ASSERT_LE(parts, score_tiles(keys)) << "their sums lie in the place of tiles";
      needed = std::max(needed, parts);
      if (keys % 61 == 0 || keys < 1000) {
        ASSERT_GE(make_plan(p, decode(1, keys, 0), kH200).exact_parts, needed);
      }
    }
    EXPECT_EQ(needed, most);
  }
}

TEST(CudaPlan, ALongRowOfExactDecodingIsWorkForAllMultiprocessors) {
  for (const int32_t keys : {8192, 32768, kMaxCudaLength}) {
    for (const int32_t num_kv_heads : {2, 4, 8}) {
      EXPECT_EQ(num_kv_heads * exact_part_count(keys, exact_most_parts(num_kv_heads)),
                std::min(128, num_kv_heads * keys / 512));
    }
  }
}

TEST(CudaPlan, PartsOfExactDecodingLieBehindEachOther) {
  for (const int32_t count : {1, 48, 1000}) {
    for (const int32_t parts : {1, 2, 17, 64}) {
      EXPECT_EQ(exact_part_begin(count, 0, parts), 0);
      EXPECT_EQ(exact_part_begin(count, parts, parts), count);
    }
  }
}

}  // namespace
}  // namespace allot::kernels::cuda
