// How launches are cut: one pass for decode, windows that cover a prefill, arrays that lie apart, shared
// memory within every GPU's limit, and a workspace that serves everything within its bounds.
#include "kernels/cuda/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "kernels/cuda/args.h"
#include "kernels/sampling.h"
#include "tests/kernels/cuda/device_limits.h"
#include "tests/kernels/cuda/plan_launch.h"
#include "tests/kernels/methods.h"

namespace allot::kernels::cuda {
namespace {

// Calls check(params, bounds) for decode and prefill launches of many shapes.
void for_each_launch(const std::function<void(const AttentionParams&, const LaunchBounds&)>& check) {
  for (const Estimator estimator : {Estimator::kExact, Estimator::kSys, Estimator::kThreshold}) {
    for (const int32_t head_dim : kHeadDims) {
      for (const int32_t group : kGroups) {
        for (const int64_t batch : {1, 3, 300}) {
          const AttentionParams p = launch({.estimator = estimator,
                                            .batch = batch,
                                            .group = group,
                                            .num_kv_heads = 2,
                                            .head_dim = head_dim});
          for (const int32_t max_queries : {1, 2, 1000}) {
            for (const int32_t max_length : {70, 1000, 8191, kMaxCudaLength}) {
              for (const int32_t max_budget : {8, 600}) {
                for (const bool any_dense : {false, true}) {
                  check(p, {.num_queries = batch * max_queries,
                            .max_queries = max_queries,
                            .max_length = max_length,
                            .max_budget = max_budget,
                            .any_dense = any_dense});
                }
              }
            }
          }
        }
      }
    }
  }
}

TEST(CudaPlan, OfDecodeIsOnePassWhateverItsLength) {
  for (const int64_t batch : {int64_t{1}, int64_t{6}, int64_t{512}, int64_t{kMaxCudaBatch}}) {
    for (const int32_t max_length : {1, 64, 65, 32768, kMaxCudaLength}) {
      const Plan plan = make_plan(launch({.batch = batch}), decode(batch, max_length), kH200);
      EXPECT_TRUE(plan.one_query_each) << batch << " x " << max_length;
      EXPECT_EQ(plan.passes, 1) << batch << " x " << max_length;
      EXPECT_EQ(plan.pass_queries, batch) << batch << " x " << max_length;
      EXPECT_EQ(plan.row_tiles, (max_length + 127) / 128 * 2) << batch << " x " << max_length;
    }
  }
}

// A sequence without a query shifts the others, so query b is not sequence b's.
TEST(CudaPlan, OfFewerQueriesThanSequencesIsNoDecode) {
  EXPECT_FALSE(make_plan(launch({.batch = 6}), decode(5, 1000), kH200).one_query_each);
}

TEST(CudaPlan, PassesCoverEveryQueryOnce) {
  int64_t cut = 0;
  for_each_launch([&](const AttentionParams& p, const LaunchBounds& bounds) {
    const Plan plan = make_plan(p, bounds, kH200);
    ASSERT_GE(plan.pass_queries, 1) << describe(p, bounds);
    ASSERT_GE(int64_t{plan.passes} * plan.pass_queries, bounds.num_queries) << describe(p, bounds);
    ASSERT_LT(int64_t{plan.passes - 1} * plan.pass_queries, bounds.num_queries) << describe(p, bounds);
    if (plan.passes == 1) return;
    ++cut;
    // Whole blocks of queries: the score kernel multiplies 8 * column_tiles columns at a time.
    const int32_t block_queries = 8 * plan.score.column_tiles / (p.num_q_heads / p.num_kv_heads);
    ASSERT_EQ(plan.pass_queries % block_queries, 0) << describe(p, bounds);
  });
  EXPECT_GT(cut, 100);
}

TEST(CudaPlan, ArraysAreAlignedAndLieApart) {
  int64_t shared_rows = 0;
  int64_t exact_rows = 0;
  for_each_launch([&](const AttentionParams& p, const LaunchBounds& bounds) {
    const Plan plan = make_plan(p, bounds, kH200);
    const int64_t rows = int64_t{plan.pass_queries} * p.num_q_heads;
    struct Array {
      int64_t offset;
      int64_t bytes;
    };
    // As args.h shapes them.
    std::vector<Array> arrays = {
        {0, kHeaderBytes},
        {plan.stats_offset, rows * plan.row_tiles * static_cast<int64_t>(sizeof(TileStats))},
        {plan.weights_offset, rows * plan.row_tiles * kScoreTile * 2}};
    if (plan.parts > 1) {
      ++shared_rows;
      arrays.push_back({plan.partial_offset, rows * plan.parts * p.head_dim * 4});
    }
    if (plan.exact_partial_offset > 0) {
      ++exact_rows;
      arrays.push_back(
          {plan.exact_partial_offset, p.batch * p.num_q_heads * plan.exact_parts * p.head_dim * 4});
    }
    for (size_t i = 0; i < arrays.size(); ++i) {
      ASSERT_EQ(arrays[i].offset % kWorkspaceAlignment, 0) << "array " << i << ", " << describe(p, bounds);
      const int64_t next = i + 1 < arrays.size() ? arrays[i + 1].offset : plan.workspace_bytes;
      ASSERT_LE(arrays[i].offset + arrays[i].bytes, next) << "array " << i << ", " << describe(p, bounds);
    }
  });
  EXPECT_GT(shared_rows, 100);
  EXPECT_GT(exact_rows, 100);
}

// The header is the same for every launch, so its counters hold a limited number of rows and pairs.
TEST(CudaPlan, CountersFitTheHeader) {
  const auto check = [](const AttentionParams& p, const LaunchBounds& bounds) {
    const Plan plan = make_plan(p, bounds, kH200);
    if (plan.announced > 0) {
      ASSERT_LT(plan.announced, p.batch) << describe(p, bounds);
      ASSERT_EQ(plan.passes, 1) << describe(p, bounds);
      ASSERT_LE(p.batch * p.num_kv_heads, kMaxPairs) << describe(p, bounds);
    }
    if (plan.parts > 1) {
      ASSERT_LE(int64_t{plan.pass_queries} * p.num_q_heads, kMaxRows) << describe(p, bounds);
    }
    ASSERT_LE(plan.pass_queries, 65535) << "grids are no longer, " << describe(p, bounds);
  };
  for_each_launch(check);
  for (const int32_t num_kv_heads : {8, 16, 64, 256}) {
    for (const int32_t group : {1, 4, 16}) {
      if (num_kv_heads * group > 1024) continue;  // refused by validate_cuda
      for (const int32_t max_budget : {8, 4096}) {
        const AttentionParams p =
            launch({.batch = kMaxCudaBatch, .group = group, .num_kv_heads = num_kv_heads, .head_dim = 64});
        check(p, decode(kMaxCudaBatch, 1000, max_budget));
      }
    }
  }
}

TEST(CudaPlan, SharedMemoryFitsEveryGpu) {
  // Static shared memory of a value kernel beside the dynamic part: entries, sums and scratch.
  constexpr int64_t kStaticBytes = 16 * 1024;
  for (const DeviceLimits& device : kDevices) {
    for (const Estimator estimator : testing::every_estimator()) {
      for (const int32_t head_dim : kHeadDims) {
        for (const int32_t group : kGroups) {
          for (const int64_t batch : {int64_t{1}, int64_t{kMaxCudaBatch}}) {
            const AttentionParams p =
                launch({.estimator = estimator, .batch = batch, .group = group, .head_dim = head_dim});
            for (const int32_t max_length : {64, 16384, 32768, kMaxCudaLength}) {
              for (const int32_t max_budget : {8, 4096}) {
                for (const int32_t max_queries : {1, 64}) {
                  LaunchBounds bounds = decode(batch * max_queries, max_length, max_budget);
                  bounds.max_queries = max_queries;
                  const Plan plan = make_plan(p, bounds, device);
                  const std::string what =
                      describe(p, bounds) + " on " + std::to_string(device.compute_capability);
                  ASSERT_GE(plan.score.warps, 1) << what;
                  ASSERT_LE(plan.score.warps, 8) << what;
                  ASSERT_LE(plan.score.shared_bytes, device.shared_bytes_per_block) << what;
                  for (const ValueKernel& value :
                       {value_kernel(p, plan.workers), dense_kernel(p.dtype, head_dim, plan.workers)}) {
                    ASSERT_NE(value.function, nullptr) << what;
                    ASSERT_LE(value.shared_bytes(plan.row_tiles, group, plan.cluster_blocks) + kStaticBytes,
                              device.shared_bytes_per_block)
                        << what;
                  }
                }
              }
            }
          }
        }
      }
    }
  }
}

TEST(CudaPlan, OfSplitKeysFitsEveryGpuAndHasRoomForTheSumsOfWeights) {
  int8_t plane = 0;  // only whether there is one matters
  for (const DeviceLimits& device : kDevices) {
    for (const Estimator estimator : {Estimator::kSys, Estimator::kThreshold}) {
      for (const int32_t head_dim : {64, 128}) {
        for (const int32_t group : kGroups) {
          for (const int64_t batch : {int64_t{1}, int64_t{kMaxCudaBatch}}) {
            for (const int32_t max_budget : {8, 4096}) {
              AttentionParams p =
                  launch({.estimator = estimator, .batch = batch, .group = group, .head_dim = head_dim});
              const LaunchBounds bounds = decode(batch, 32768, max_budget);
              const int64_t without = make_plan(p, bounds, device).workspace_bytes;
              p.split = {.high = &plane, .low = &plane};
              const Plan plan = make_plan(p, bounds, device);
              const std::string what =
                  describe(p, bounds) + " on " + std::to_string(device.compute_capability);
              ASSERT_GE(plan.score.warps, 1) << what;
              ASSERT_LE(plan.score.shared_bytes, device.shared_bytes_per_block) << what;
              ASSERT_GE(4 * plan.score.column_tiles, group) << what;
              ASSERT_NE(
                  score_kernel(p, ScoreStage::kExact, plan.score.column_tiles, ScoreUse::kDecode).function,
                  nullptr)
                  << what;
              ASSERT_NE(value_kernel(p, plan.workers).function, nullptr) << what;
              const int64_t sums =
                  plan.parts > 1 ? batch * p.num_q_heads * plan.parts * kWeightSumRoom * 4 : 0;
              ASSERT_GE(plan.workspace_bytes, without + sums) << what;
            }
          }
        }
      }
    }
  }
}

// A warp's ring of stages takes 16 KiB.
TEST(CudaPlan, ScoreWarpsFillTheSharedMemory) {
  const int32_t expected[] = {8, 6, 6, 8};
  for (size_t i = 0; i < std::size(kDevices); ++i) {
    const Plan plan = make_plan(launch({.batch = 16}), decode(16, 32768), kDevices[i]);
    EXPECT_EQ(plan.score.warps, expected[i]) << "compute capability " << kDevices[i].compute_capability;
    EXPECT_GE(plan.score.blocks, kDevices[i].multiprocessors);
  }
}

// A lane of a warp holds the place of one stage of the piece.
TEST(CudaPlan, PiecesFitAWarp) {
  static_assert(kMaxPieceTiles * (kScoreTile / kStageKeys) <= 32);
  for_each_launch([](const AttentionParams& p, const LaunchBounds& bounds) {
    const Plan plan = make_plan(p, bounds, kH200);
    ASSERT_GE(plan.score.piece_tiles, 1) << describe(p, bounds);
    ASSERT_LE(plan.score.piece_tiles, kMaxPieceTiles) << describe(p, bounds);
  });
  EXPECT_EQ(make_plan(launch({.batch = 1}), decode(1, 8192), kH200).score.piece_tiles, 1);
}

TEST(CudaPlan, PartsSufficeForEveryRowWithinTheBound) {
  const AttentionParams p = launch({});
  int32_t needed = 1;
  for (int32_t entries = 1; entries <= 300000; ++entries) {
    const int32_t count = part_count(entries);
    ASSERT_LE(count, kMaxParts) << entries << " entries";
    ASSERT_GE(int64_t{count} * part_entries(entries), entries) << entries << " entries";
    needed = std::max(needed, count);
    ASSERT_GE(make_plan(p, decode(1, 64, entries), kH200).parts, needed) << "rows of up to " << entries;
  }
  // Dense rows have as many entries as keys.
  const AttentionParams exact = launch({.estimator = Estimator::kExact});
  needed = 1;
  for (int32_t keys = 1; keys <= kMaxCudaLength; ++keys) {
    needed = std::max(needed, part_count(keys));
    ASSERT_GE(make_plan(exact, decode(1, keys, 0), kH200).parts, needed) << "rows of up to " << keys;
  }
}

TEST(CudaPlan, ShortRowsHaveOnePart) {
  EXPECT_EQ(make_plan(launch({}), decode(16, 32768, kBatchEntries), kH200).parts, 1);
  EXPECT_EQ(make_plan(launch({}), decode(16, 32768, 0), kH200).parts, 1);
  EXPECT_GT(make_plan(launch({}), decode(16, 32768, kBatchEntries + 1), kH200).parts, 1);
  LaunchBounds dense = decode(16, 32768, 8);
  dense.any_dense = true;
  EXPECT_EQ(make_plan(launch({}), dense, kH200).parts, kMaxParts);
}

TEST(CudaPlan, OneWarpDoesARowOfASmallBudget) {
  for (const Estimator estimator : testing::every_estimator()) {
    if (estimator == Estimator::kExact) continue;
    if (row_of(estimator).scope != Scope::kHead) continue;
    const AttentionParams p = launch({.estimator = estimator, .batch = 6});
    EXPECT_EQ(make_plan(p, decode(6, 16384, kWarpRowBudget), kH200).workers, Workers::kWarp)
        << name(estimator);
    EXPECT_EQ(make_plan(p, decode(6, 16384, kWarpRowBudget + 1), kH200).workers, Workers::kBlock)
        << name(estimator);
    // Four rows' tables would leave few blocks on a multiprocessor.
    EXPECT_EQ(make_plan(p, decode(6, kMaxCudaLength, kWarpRowBudget), kH200).workers, Workers::kBlock)
        << name(estimator);
    // A dense batch mate does not change how a row of samples is added up.
    LaunchBounds mixed = decode(6, 16384, kWarpRowBudget);
    mixed.any_dense = true;
    EXPECT_EQ(make_plan(p, mixed, kH200).workers, Workers::kWarp) << name(estimator);
  }
  EXPECT_EQ(make_plan(launch({.estimator = Estimator::kExact}), decode(1, 16, 0), kH200).workers,
            Workers::kBlock);
}

TEST(CudaPlan, AGroupOfASmallBudgetHasAWarpAQueryOrFourWhereItIsLong) {
  for (const Estimator estimator : {Estimator::kJoint, Estimator::kPooled, Estimator::kLevel}) {
    const AttentionParams p = launch({.estimator = estimator, .batch = 6});
    // The tau of pooled rows comes from sizes to the same bit, which nobody holds.
    const bool held = estimator != Estimator::kPooled;
    EXPECT_EQ(make_plan(p, decode(6, kWarpGroupKeys, kWarpRowBudget), kH200).workers,
              held ? Workers::kWarpThatHolds : Workers::kWarp);
    EXPECT_EQ(make_plan(p, decode(6, kWarpGroupKeys + 1, kWarpRowBudget), kH200).workers,
              held ? Workers::kFourWarpsThatHold : Workers::kFourWarps);
    EXPECT_EQ(make_plan(p, decode(6, kWarpGroupKeys, kWarpRowBudget + 1), kH200).workers,
              held ? Workers::kCluster : Workers::kBlock);
    LaunchBounds mixed = decode(6, 16384, kWarpRowBudget);
    mixed.any_dense = true;
    EXPECT_EQ(make_plan(p, mixed, kH200).workers, Workers::kFourWarps) << "too long to hold";
  }
}

TEST(CudaPlan, AClusterHasFewerBlocksWhereManyGroupsAreServed) {
  AttentionParams p = launch({.estimator = Estimator::kJoint, .batch = 1, .num_kv_heads = 8});
  const auto blocks = [&](int32_t batch, int32_t max_length) {
    p.batch = batch;
    const Plan plan = make_plan(p, decode(batch, max_length, 128), kH200);
    EXPECT_EQ(plan.workers, Workers::kCluster);
    EXPECT_EQ(plan.parts, 1);
    return plan.cluster_blocks;
  };
  EXPECT_EQ(blocks(1, 32768), kMostRowParts);
  EXPECT_EQ(blocks(6, 32768), kMostRowParts / 2);
  EXPECT_EQ(blocks(6, kMaxCudaLength), kMostRowParts) << "half as many would need too much shared memory";
  EXPECT_EQ(blocks(1, 2 * kRowPartTiles * kScoreTile), 2);
  EXPECT_EQ(blocks(6, kRowPartTiles * kScoreTile), 1);
  DeviceLimits without = kH200;
  without.compute_capability = 89;
  EXPECT_EQ(make_plan(p, decode(6, 32768, 128), without).workers, Workers::kBlock);
}

TEST(CudaPlan, SequencesWhoseValueBlocksFitAtOnceAreNotAnnounced) {
  const auto announced = [](Estimator estimator, int64_t batch, int32_t max_budget,
                            const DeviceLimits& limits = kH200) {
    const AttentionParams p = launch({.estimator = estimator, .batch = batch});
    return make_plan(p, decode(batch, 32768, max_budget), limits).announced;
  };
  // A block of 256 threads for each of 32 heads, two of them on a multiprocessor.
  EXPECT_EQ(announced(Estimator::kSys, 1, 128), 0);
  EXPECT_EQ(announced(Estimator::kSys, 8, 128), 0);
  EXPECT_EQ(announced(Estimator::kSys, 9, 128), 1);
  EXPECT_EQ(announced(Estimator::kSys, 16, 128), 8);
  // Blocks share a row with many samples.
  EXPECT_EQ(announced(Estimator::kSys, 4, 1024), 0);
  EXPECT_EQ(announced(Estimator::kSys, 4, 2048), 2);
  EXPECT_EQ(announced(Estimator::kSys, 1, 1 << 16), 0) << "a single one is complete at the end";
  // A warp for each head.
  EXPECT_EQ(announced(Estimator::kSys, 66, 8), 0);
  EXPECT_EQ(announced(Estimator::kSys, 300, 8), 234);
  // A cluster of four blocks for each of eight KV heads.
  EXPECT_EQ(announced(Estimator::kJoint, 6, 128), 0);
  EXPECT_EQ(announced(Estimator::kJoint, 7, 128), 6);
  DeviceLimits half = kH200;
  half.multiprocessors /= 2;
  EXPECT_EQ(announced(Estimator::kSys, 8, 128, half), 4);
  EXPECT_EQ(announced(Estimator::kSys, 16, 128, kDevices[0]), 0) << "kernels do not overlap there";
  // Exact attention over planes has one kernel for scores and values.
  const int8_t plane = 0;
  AttentionParams planes = launch({.estimator = Estimator::kExact, .batch = 16});
  planes.split = {.high = &plane, .low = &plane};
  EXPECT_EQ(make_plan(planes, decode(16, 32768), kH200).announced, 0);
}

TEST(CudaPlan, WhereGroupsShareOutTheirRowsTheValueKernelWaitsForAllScores) {
  const LaunchBounds bounds = decode(80, 16384, 8);
  const Plan joint = make_plan(launch({.estimator = Estimator::kJoint, .batch = 80}), bounds, kH200);
  EXPECT_GT(joint.announced, 0);
  EXPECT_EQ(joint.pools_offset, 0);
  const Plan pooled = make_plan(launch({.estimator = Estimator::kPooled, .batch = 80}), bounds, kH200);
  EXPECT_EQ(pooled.announced, 0);
  EXPECT_GE(pooled.pools_offset, pooled.partial_offset);
  EXPECT_GT(pooled.rest_below_offset, pooled.pools_offset);
}

TEST(CudaPlan, WhereNormsCountTheirSumsHaveAPlaceAndTheValueKernelOverlapsAllTheSame) {
  const LaunchBounds bounds = decode(80, 16384, 8);
  AttentionParams p = launch({.estimator = Estimator::kJoint, .batch = 80});
  const Plan plain = make_plan(p, bounds, kH200);
  EXPECT_EQ(plain.norm_stats_offset, 0);
  set_parameter(&p.method, "value-norms", 1);
  const Plan plan = make_plan(p, bounds, kH200);
  EXPECT_GT(plan.announced, 0);
  const int64_t rows = p.batch * p.num_q_heads;
  EXPECT_GE(plan.norm_stats_offset, plan.weights_offset + rows * plan.row_tiles * kScoreTile * 2);
  const int64_t bytes = rows * plan.row_tiles * int64_t{sizeof(NormStats)};
  EXPECT_LE(plan.norm_stats_offset + bytes, plan.workspace_bytes);
  EXPECT_GE(plan.workspace_bytes, plain.workspace_bytes + bytes);
  for (const int32_t length : {kShortTiles * kScoreTile, kWarpGroupKeys, 2048})
    EXPECT_EQ(make_plan(p, decode(80, length, 8), kH200).norm_stats_offset, 0)
        << "the sizes of all rows are held";
}

TEST(CudaPlan, RowsThatAWarpHoldsInRegistersHaveAKernelOfTheirOwn) {
  constexpr int32_t kShort = kShortTiles * kScoreTile;
  for (const Estimator estimator : {Estimator::kJoint, Estimator::kPooled, Estimator::kLevel}) {
    const AttentionParams p = launch({.estimator = estimator, .batch = 6});
    // Whose tau comes from sizes to the same bit.
    const bool held = estimator != Estimator::kPooled;
    const Workers expected = held ? Workers::kWarpOfShortRow : Workers::kWarp;
    EXPECT_EQ(make_plan(p, decode(6, kShort, kWarpRowBudget), kH200).workers, expected) << name(estimator);
    EXPECT_EQ(make_plan(p, decode(6, kShort + 1, kWarpRowBudget), kH200).workers,
              held ? Workers::kWarpThatHolds : Workers::kWarp)
        << name(estimator);
    EXPECT_EQ(make_plan(p, decode(6, kShort, kWarpRowBudget + 1), kH200).workers,
              held ? Workers::kCluster : Workers::kBlock)
        << name(estimator);
  }
}

TEST(CudaPlan, CountingRowsTakesTablesTwiceTheRowsOfAGroupWhereHeadsChooseAlone) {
  AttentionParams p = launch({.estimator = Estimator::kSys, .batch = 6, .group = 4, .num_kv_heads = 2});
  EXPECT_EQ(make_plan(p, decode(6, 16384, 8), kH200).row_slots, 0);
  p.rows_read = reinterpret_cast<int64_t*>(0x1000);
  const Plan counted = make_plan(p, decode(6, 16384, 8), kH200);
  EXPECT_EQ(counted.row_slots, 2 * 8 * 4);
  EXPECT_EQ(counted.row_table_bytes, 6 * 2 * counted.row_slots * 4);
  EXPECT_EQ(make_plan(p, decode(6, 100, 1000), kH200).row_slots, 256) << "there are no more rows than keys";
  p.method.estimator = Estimator::kJoint;
  EXPECT_EQ(make_plan(p, decode(6, 16384, 8), kH200).row_slots, 0);
}

// As many rows as the heads of a group have samples take the same kernels: so they give the same bytes.
TEST(CudaPlan, OfRowsIsThatOfAsManySamplesOfTheGroup) {
  for (const Estimator estimator : {Estimator::kJoint, Estimator::kLevel}) {
    for (const int32_t group : {1, 3, 8}) {
      for (const int32_t samples : {1, 31, kWarpRowBudget, kWarpRowBudget + 1, 500, 2048}) {
        for (const int32_t max_length : {1000, 8192, 32768}) {
          AttentionParams p = launch({.estimator = estimator, .batch = 6, .group = group});
          const Plan of_samples = make_plan(p, decode(6, max_length, samples), kH200);
          p.method.unit = BudgetUnit::kRows;
          const Plan of_rows = make_plan(p, decode(6, max_length, samples * group), kH200);
          EXPECT_EQ(of_rows.parts, of_samples.parts) << describe(p, decode(6, max_length, samples));
          EXPECT_EQ(of_rows.workers, of_samples.workers);
          EXPECT_EQ(of_rows.workspace_bytes, of_samples.workspace_bytes);
        }
      }
    }
  }
}

// By what was measured: many rows, short enough that eight warps of a block hold one each, or ten where heads
// draw one by one.
TEST(CudaPlan, ManyShortRowsWithSmallBudgetsHaveAKernelOfTheirOwn) {
  const auto warps = [](const Shape& shape, int32_t keys, int32_t budget = 8,
                        const std::function<void(AttentionParams&)>& change = {}) {
    AttentionParams p = launch(shape);
    if (change) change(p);
    const Plan plan = make_plan(p, decode(shape.batch, keys, budget), kH200);
    EXPECT_LE(plan.short_decode.shared_bytes, kH200.shared_bytes_per_block);
    EXPECT_EQ(plan.short_decode.threads, 32 * plan.short_decode.warps);
    return plan.short_decode.warps;
  };
  const Shape shape{.batch = 1536, .group = 7, .num_kv_heads = 4};
  EXPECT_EQ(warps(shape, 672), 12);
  EXPECT_EQ(warps(shape, 1280), 8);
  EXPECT_EQ(warps({.batch = 256}, 1600), 10);
  EXPECT_EQ(warps({.batch = 256}, 300), 12);
  EXPECT_EQ(warps({.batch = 256}, 2048), 8);
  EXPECT_EQ(warps({.batch = 256}, 2400), 0) << "too long";
  EXPECT_EQ(warps({.estimator = Estimator::kThreshold, .batch = 256}, 1600), 10);
  EXPECT_EQ(warps({.estimator = Estimator::kThreshold, .batch = 256}, 2048), 0) << "too long";
  EXPECT_EQ(warps({.batch = 64}, 300), 0) << "too few";
  EXPECT_GT(warps(shape, 672, 32), 0);
  EXPECT_EQ(warps(shape, 672, 33), 0) << "a budget for more than a warp";
  EXPECT_EQ(warps({.batch = 1536, .group = 16, .num_kv_heads = 2}, 300), 0);
  for (const Estimator estimator : {Estimator::kIid, Estimator::kStrat, Estimator::kThreshold})
    EXPECT_GT(warps({.estimator = estimator, .batch = 256}, 672), 0) << name(estimator);
  for (const Estimator estimator : {Estimator::kExact, Estimator::kProp, Estimator::kJoint, Estimator::kTopk})
    EXPECT_EQ(warps({.estimator = estimator, .batch = 256}, 672), 0) << name(estimator);
  EXPECT_EQ(warps(shape, 672, 8, [](AttentionParams& p) { p.method.score_stage = ScoreStage::kBernoulli; }),
            0);
  static int8_t plane = 0;
  EXPECT_EQ(warps(shape, 672, 8, [](AttentionParams& p) { p.split = {.high = &plane, .low = &plane}; }), 0);
}

// Multiprocessors of such launches have a row each, at most.
TEST(CudaPlan, ALaunchHasFewRows) {
  const auto few = [](int64_t batch, int32_t keys) {
    return make_plan(launch({.batch = batch}), decode(batch, keys, 128), kH200).few_rows;
  };
  EXPECT_TRUE(few(1, 131072));
  EXPECT_TRUE(few(4, 32768)) << "128 rows for 132 multiprocessors";
  EXPECT_FALSE(few(5, 32768));
}

// Every bound by itself, from every point of a grid: a workspace sized for larger bounds serves smaller ones.
TEST(CudaPlan, TheWorkspaceGrowsWithEveryBound) {
  constexpr std::array<int64_t, 9> kQueries = {1, 2, 6, 7, 63, 64, 500, 20000, 300000};
  constexpr std::array<int32_t, 4> kMaxQueries = {1, 2, 100, 100000};
  constexpr std::array<int32_t, 10> kLengths = {1,     600,   1000,  4096,   8200,
                                                32768, 33000, 65536, 131072, kMaxCudaLength};
  constexpr std::array<int32_t, 7> kBudgets = {0, 32, 512, 513, 1025, 8192, kMaxBudget};
  constexpr size_t kDimensions = 5;
  const std::array<size_t, kDimensions> sizes = {kQueries.size(), kMaxQueries.size(), kLengths.size(),
                                                 kBudgets.size(), 2};
  const auto bounds_at = [&](const std::array<size_t, kDimensions>& at) {
    return LaunchBounds{.num_queries = kQueries[at[0]],
                        .max_queries = kMaxQueries[at[1]],
                        .max_length = kLengths[at[2]],
                        .max_budget = kBudgets[at[3]],
                        .any_dense = at[4] == 1};
  };
  for (const Estimator estimator : {Estimator::kExact, Estimator::kSys, Estimator::kPooled}) {
    for (const int64_t batch : {1, 7, 64}) {
      for (const int32_t group : {1, 4, 16}) {
        const AttentionParams p =
            launch({.estimator = estimator, .batch = batch, .group = group, .num_kv_heads = 4});
        std::array<size_t, kDimensions> at = {};
        for (bool done = false; !done;) {
          const LaunchBounds bounds = bounds_at(at);
          const int64_t bytes = make_plan(p, bounds, kH200).workspace_bytes;
          for (size_t d = 0; d < kDimensions; ++d) {
            if (at[d] + 1 == sizes[d]) continue;
            std::array<size_t, kDimensions> next = at;
            ++next[d];
            const LaunchBounds larger = bounds_at(next);
            ASSERT_GE(make_plan(p, larger, kH200).workspace_bytes, bytes)
                << describe(p, bounds) << " grown to " << describe(p, larger);
          }
          size_t d = 0;
          while (d < kDimensions && ++at[d] == sizes[d]) at[d++] = 0;
          done = d == kDimensions;
        }
      }
    }
  }
}

TEST(CudaPlan, APrefillOfAnySizeFitsABoundedWorkspace) {
  for (const int32_t max_length : {4096, 32768, kMaxCudaLength}) {
    const LaunchBounds bounds = {
        .num_queries = max_length, .max_queries = max_length, .max_length = max_length, .max_budget = 2048};
    EXPECT_LE(make_plan(launch({}), bounds, kH200).workspace_bytes, kHeaderBytes + kPassBytes + 4096)
        << max_length;
  }
}

TEST(CudaPlan, WithoutQueriesNeedsTheHeaderAlone) {
  for (const int64_t batch : {0, 6}) {
    const AttentionParams p = launch({.batch = batch});
    EXPECT_EQ(make_plan(p, {}, kH200).workspace_bytes, kHeaderBytes) << "batch " << batch;
    EXPECT_EQ(make_plan(p, {}, kH200).passes, 0) << "batch " << batch;
    EXPECT_EQ(cuda_workspace_bytes(p, {}, kH200), static_cast<size_t>(kHeaderBytes)) << "batch " << batch;
  }
}

}  // namespace
}  // namespace allot::kernels::cuda
