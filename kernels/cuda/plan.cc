#include "kernels/cuda/plan.h"

#include <algorithm>
#include <bit>

#include "kernels/cuda/args.h"

namespace allot::kernels::cuda {
namespace {

constexpr int64_t align(int64_t bytes) {
  return (bytes + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
}
constexpr int64_t ceil_divide(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// Query heads that a column tile has room for: of split keys both planes of each.
int32_t tile_queries(const AttentionParams& p) {
  return p.split.high == nullptr ? 8 : 4;
}

// Columns for one query of every head.
int32_t decode_column_tiles(const AttentionParams& p) {
  return p.num_q_heads / p.num_kv_heads <= 8 ? 1 : 2;
}

// Columns for one query of every head in decode; as wide as registers allow in prefill, where a wider product
// reads the keys less often.
int32_t choose_column_tiles(const AttentionParams& p, ScoreStage stage, bool decode) {
  const int32_t group = p.num_q_heads / p.num_kv_heads;
  if (p.split.high != nullptr) return group <= 4 ? 1 : group <= 8 ? 2 : 4;
  if (decode) return decode_column_tiles(p);
  return p.head_dim <= 128 && stage == ScoreStage::kExact ? 4 : 2;
}

// Number of blocks that may share a row of up to `entries` entries. An upper bound for shorter rows, too,
// some of which may have more parts than the longest row.
int32_t most_parts(int32_t entries) {
  return static_cast<int32_t>(std::clamp<int64_t>(ceil_divide(entries, kBatchEntries), 1, kMaxParts));
}

// Parts of a row of `keys` keys in exact decoding.
int32_t exact_parts(const AttentionParams& p, int32_t keys) {
  return exact_part_count(keys, exact_most_parts(p.num_kv_heads));
}

// Spans for each block, at least, where blocks of the exact decode kernel take spans.
constexpr int32_t kManySpans = 3;

// Parts of rows in exact decoding that have as many bytes of keys and values as may leave L2 first: some four
// times what it holds.
int32_t parts_beside_l2(const AttentionParams& p, int32_t max_length) {
  constexpr int64_t kBytes = int64_t{256} << 20;
  const int64_t part_keys = ceil_divide(max_length, exact_parts(p, max_length));
  return static_cast<int32_t>(kBytes / (part_keys * p.head_dim * 4));
}

// Workspace of a row.
struct RowBytes {
  int64_t stats = 0;
  int64_t weights = 0;
  int64_t norm_stats = 0;
  int64_t partial = 0;
  int64_t all() const { return stats + weights + norm_stats + partial; }
};
RowBytes row_bytes(const Plan& plan, const AttentionParams& p) {
  return {.stats = plan.row_tiles * int64_t{sizeof(TileStats)},
          .weights = plan.row_tiles * int64_t{kScoreTile} * 2,
          // Whether this launch needs them or not: another within its bounds may.
          .norm_stats = uses_value_norms(p.method) ? plan.row_tiles * int64_t{sizeof(NormStats)} : 0,
          .partial = plan.parts > 1 ? int64_t{plan.parts} *
                                          (p.head_dim + (p.split.low == nullptr ? 0 : kWeightSumRoom)) * 4
                                    : 0};
}

// Entries of the hash table of a group's rows: at most half are used.
int32_t row_slots(const AttentionParams& p, const LaunchBounds& bounds) {
  if (p.rows_read == nullptr || row_of(p.method.estimator).scope != Scope::kHead ||
      !row_of(p.method.estimator).samples) {
    return 0;
  }
  const int64_t rows =
      std::min(int64_t{bounds.max_budget} * (p.num_q_heads / p.num_kv_heads), int64_t{bounds.max_length});
  return static_cast<int32_t>(std::bit_ceil(static_cast<uint64_t>(2 * std::max(rows, int64_t{1}))));
}

// Workspace of a query beside its rows: what its groups share, and which value rows each has read.
struct QueryBytes {
  int64_t pool = 0;
  int64_t rest_below = 0;
  int64_t row_table = 0;
  int64_t all() const { return pool + rest_below + row_table; }
};
QueryBytes query_bytes_of(const AttentionParams& p, int32_t row_slots) {
  QueryBytes bytes{.row_table = int64_t{p.num_kv_heads} * row_slots * int64_t{sizeof(uint32_t)}};
  if (row_of(p.method.estimator).scope == Scope::kLayer) {
    bytes.pool = sizeof(Pool);
    bytes.rest_below = (p.num_kv_heads + 1) * int64_t{sizeof(double)};
  }
  return bytes;
}

}  // namespace

ScoreKernel score_kernel(const AttentionParams& p, ScoreStage stage, int32_t column_tiles, ScoreUse use) {
  if (p.split.high != nullptr) return split_score_kernel(p.head_dim, column_tiles);
  const bool bfloat16 = p.dtype == DType::kBFloat16;
  if (stage != ScoreStage::kExact) {
    return (bfloat16 ? bernoulli_kernel_bfloat16 : bernoulli_kernel_float16)(p.head_dim, column_tiles);
  }
  return (bfloat16 ? score_kernel_bfloat16 : score_kernel_float16)(p.head_dim, column_tiles, use);
}

namespace {

using CudaKernel = ValueKernel (*)(DType dtype, int32_t head_dim, Workers workers);
struct CudaKernelOf {
  template <class Method>
  static constexpr CudaKernel of() {
    return Method::cuda_kernel;
  }
};
constexpr Methods::Table<CudaKernel, CudaKernelOf> kValueKernels;

}  // namespace

ScoreKernel exact_decode_kernel(const AttentionParams& p, int32_t column_tiles) {
  const bool bfloat16 = p.dtype == DType::kBFloat16;
  if (attends_exactly_by_planes(p)) {
    return (bfloat16 ? split_exact_decode_kernel_bfloat16 : split_exact_decode_kernel_float16)(p.head_dim,
                                                                                               column_tiles);
  }
  return (bfloat16 ? exact_decode_kernel_bfloat16 : exact_decode_kernel_float16)(p.head_dim, column_tiles);
}

ShortDecodeKernel short_decode_kernel(const AttentionParams& p) {
  return (p.dtype == DType::kBFloat16 ? short_decode_kernel_bfloat16 : short_decode_kernel_float16)(
      p.method.estimator, p.head_dim);
}

ValueKernel dense_kernel(DType dtype, int32_t head_dim, Workers workers) {
  return methods::Exact::cuda_kernel(dtype, head_dim, workers);
}

ValueKernel value_kernel(const AttentionParams& p, Workers workers) {
  if (p.split.low != nullptr) {
    return (p.dtype == DType::kBFloat16 ? split_value_kernel_bfloat16 : split_value_kernel_float16)(
        p.method.estimator, p.head_dim, workers);
  }
  return kValueKernels[p.method.estimator](p.dtype, p.head_dim, workers);
}

namespace {

// Blocks of a kernel that reads keys, with as many warps as shared memory has room for.
ScorePlan plan_blocks(const AttentionParams& p, const ScoreKernel& kernel, int32_t column_tiles,
                      const DeviceLimits& limits) {
  ScorePlan plan{.column_tiles = column_tiles};
  const int64_t block_bytes = kernel.block_bytes + kernel.sequence_bytes * p.batch;
  plan.warps = static_cast<int32_t>(std::clamp<int64_t>(
      (limits.shared_bytes_per_block - block_bytes) / kernel.warp_bytes, 1, kernel.most_warps));
  plan.threads = 32 * (plan.warps + kernel.other_warps);
  plan.shared_bytes = block_bytes + plan.warps * kernel.warp_bytes;
  plan.blocks = kernel.blocks * limits.multiprocessors;
  return plan;
}

// Plans for a launch with the shape of `launch`.
ScorePlan plan_scores(const AttentionParams& p, ScoreStage stage, const Plan& launch,
                      const DeviceLimits& limits) {
  const int32_t column_tiles = choose_column_tiles(p, stage, launch.one_query_each);
  ScorePlan plan =
      plan_blocks(p, score_kernel(p, stage, column_tiles, score_use(launch)), column_tiles, limits);
  // Small pieces let fast multiprocessors take work from slow ones. Below kMaxPieceTiles finding the next
  // piece costs more than that gains, unless there is less than one piece per warp.
  const int64_t work = launch.one_query_each ? p.batch * p.num_kv_heads * launch.row_tiles : INT32_MAX;
  plan.piece_tiles = static_cast<int32_t>(
      std::clamp<int64_t>(ceil_divide(work, int64_t{plan.blocks} * plan.warps), 1, kMaxPieceTiles));
  return plan;
}

// Where the index of thousands of sequences leaves too little shared memory, the other kernels serve them
// all.
ScorePlan plan_exact_decode(const AttentionParams& p, const DeviceLimits& limits) {
  const int32_t column_tiles = decode_column_tiles(p);
  const ScorePlan plan = plan_blocks(p, exact_decode_kernel(p, column_tiles), column_tiles, limits);
  return plan.shared_bytes > limits.shared_bytes_per_block ? ScorePlan{} : plan;
}

// Short rows, many of them, with small budgets: a warp each. Otherwise a plan without warps.
ScorePlan plan_short_decode(const AttentionParams& p, const Plan& launch, int32_t max_length,
                            const DeviceLimits& limits) {
  // Rows for each multiprocessor, so that their warps are busy to the end.
  constexpr int64_t kManyRows = 8;
  const int32_t group = p.num_q_heads / p.num_kv_heads;
  const bool fits = launch.one_query_each && launch.passes == 1 && launch.workers == Workers::kWarp &&
                    p.method.score_stage == ScoreStage::kExact && p.split.high == nullptr && group <= 8 &&
                    limits.compute_capability >= 90 &&  // measured on none before
                    !launch.dense_left;
  const ShortDecodeKernel kernel = fits ? short_decode_kernel(p) : ShortDecodeKernel{};
  if (kernel.function == nullptr || p.batch * p.num_kv_heads < kManyRows * limits.multiprocessors) return {};
  const int64_t warp_bytes = kernel.warp_bytes(score_tiles(max_length), group);
  const int64_t warps = std::min<int64_t>(kMostShortWarps, limits.shared_bytes_per_block / warp_bytes);
  if (warps < kernel.fewest_warps) return {};
  return {.warps = static_cast<int32_t>(warps),
          .threads = static_cast<int32_t>(32 * warps),
          .blocks = limits.multiprocessors,
          .shared_bytes = warps * warp_bytes};
}

// Sequences of a decode launch that are sampled while the keys of others are still being read: all that have
// no room among the blocks of the value kernel that run at once. The others are sampled together behind the
// score kernel, in the time that the last one alone would take, so announcing their pieces, and blocks that
// read while keys are read, would only cost time.
int32_t announced_sequences(const Plan& plan, const AttentionParams& p, const LaunchBounds& bounds,
                            const DeviceLimits& limits) {
  const ValueKernel kernel = value_kernel(p, plan.workers);
  if (kernel.function == nullptr) return 0;  // another one serves every sequence
  // Of a multiprocessor: value kernels have 128 registers a thread, and a cluster needs neighbouring ones.
  const int64_t room = kernel.clusters() ? 384 : 512;
  const ValueGrid grid = value_grid(kernel, p.num_q_heads, p.num_kv_heads, plan.row_blocks(kernel),
                                    static_cast<int32_t>(bounds.num_queries));
  const int64_t threads = int64_t{grid.rows} * grid.parts * grid.queries * kernel.threads;
  int64_t at_once = std::min(p.batch, room * limits.multiprocessors * p.batch / threads);
  // Clusters work so long on a row that those of all sequences gain by a head start, if not all have room.
  if (kernel.clusters() && at_once < p.batch) at_once = 0;
  // The last sequence is never complete before the score kernel ends.
  return static_cast<int32_t>(p.batch - std::max<int64_t>(at_once, 1));
}

}  // namespace

bool has_exact_decode(const AttentionParams& p, const DeviceLimits& limits) {
  return plan_exact_decode(p, limits).warps > 0;
}

Plan make_plan(const AttentionParams& p, const LaunchBounds& bounds, const DeviceLimits& limits) {
  using enum Workers;
  Plan plan;
  plan.workspace_bytes = kHeaderBytes;
  if (bounds.num_queries == 0) return plan;
  plan.one_query_each = bounds.max_queries == 1 && bounds.num_queries == p.batch;
  const ScoreStage stage = p.method.score_stage;
  plan.score.column_tiles = choose_column_tiles(p, stage, plan.one_query_each);

  plan.row_tiles = (score_tiles(bounds.max_length) + 1) / 2 * 2;
  const bool dense = !row_of(p.method.estimator).samples || bounds.any_dense;
  const int32_t group = p.num_q_heads / p.num_kv_heads;
  const int32_t dense_parts = dense ? most_parts(bounds.max_length) : 1;
  const auto shared_of = [&](Workers workers, int32_t cluster_blocks = 1) {
    return value_kernel(p, workers).shared_bytes(plan.row_tiles, group, cluster_blocks);
  };
  constexpr int64_t kModestShared = 18 * 1024;  // leaves a multiprocessor full of blocks
  // Leaves room for two blocks beside the score kernel.
  constexpr int64_t kHeldShared = 36 * 1024;
  constexpr int64_t kClusterShared = 80 * 1024;  // of one
  const Scope scope = row_of(p.method.estimator).scope;
  // Depends on the budgets alone: dense sequences have a kernel of their own.
  const int64_t most_samples = rows_of_group(p.method.unit, bounds.max_budget, group);  // of all heads
  const bool small = row_of(p.method.estimator).samples && most_samples <= int64_t{kWarpRowBudget} * group;
  // The score kernel of split keys leaves no sums of norms.
  const bool must_hold = p.split.high != nullptr && uses_value_norms(p.method);
  if (scope == Scope::kHead) {
    plan.workers = small && shared_of(kWarp) <= kModestShared ? kWarp : kBlock;
  } else if (scope == Scope::kLayer) {  // tau has been found by another kernel, from sizes to the same bit
    plan.workers = !small ? kBlock : bounds.max_length > kWarpGroupKeys ? kFourWarps : kWarp;
  } else if (small && !(must_hold && bounds.max_length > kWarpGroupKeys &&
                        shared_of(kFourWarpsThatHold) > kHeldShared)) {
    plan.workers = plan.row_tiles <= kShortTiles                  ? kWarpOfShortRow
                   : bounds.max_length <= kWarpGroupKeys          ? kWarpThatHolds
                   : shared_of(kFourWarpsThatHold) <= kHeldShared ? kFourWarpsThatHold
                                                                  : kFourWarps;
  } else {
    plan.workers = kBlock;
    if (limits.compute_capability >= 90) {
      // Results are the same with as many blocks as parts, and fewer leave each other more room.
      plan.cluster_blocks = kMostRowParts;
      const bool many = bounds.num_queries * p.num_kv_heads * kMostRowParts > limits.multiprocessors;
      if (many && shared_of(kCluster, kMostRowParts / 2) <= kClusterShared)
        plan.cluster_blocks = kMostRowParts / 2;
      plan.cluster_blocks = std::min(plan.cluster_blocks, row_part_count(plan.row_tiles));
      if (shared_of(kCluster, plan.cluster_blocks) <= limits.shared_bytes_per_block) plan.workers = kCluster;
    }
  }
  plan.parts = dense_parts;
  if (scope == Scope::kHead) plan.parts = std::max(plan.parts, most_parts(bounds.max_budget));
  if (scope != Scope::kHead && plan.workers == kBlock)
    plan.parts = std::max(plan.parts, shared_part_count(most_samples, bounds.max_length));

  // Where the sizes of all rows are held, no sums of their tiles are needed.
  plan.norm_stats = uses_value_norms(p.method) && !hold_sizes(plan.workers);

  // A window that cuts blocks of queries short would read the keys more often than needed.
  const RowBytes row = row_bytes(plan, p);
  plan.row_slots = row_slots(p, bounds);
  const QueryBytes query = query_bytes_of(p, plan.row_slots);
  const int64_t query_bytes = p.num_q_heads * row.all() + query.all();
  plan.exact_parts = dense ? exact_parts(p, bounds.max_length) : 1;
  const int64_t exact_bytes =
      plan.exact_parts > 1 ? p.num_q_heads * int64_t{plan.exact_parts} * p.head_dim * 4 : 0;
  const int64_t block_queries = tile_queries(p) * plan.score.column_tiles / (p.num_q_heads / p.num_kv_heads);
  // A grid has at most 65535 queries, and shared rows at most kMaxRows counters.
  const int64_t most = std::min<int64_t>(65535, plan.parts > 1 ? kMaxRows / p.num_q_heads : 65535);
  const int64_t fitting = std::max(std::min(kPassBytes / query_bytes, most), block_queries);
  const bool one_pass = bounds.num_queries <= (plan.one_query_each ? std::max(most, fitting) : fitting);
  plan.pass_queries =
      static_cast<int32_t>(one_pass ? bounds.num_queries : fitting / block_queries * block_queries);
  plan.passes = static_cast<int32_t>(ceil_divide(bounds.num_queries, plan.pass_queries));
  // Without overlapping launches nobody gains by an announcement, and where groups share out their rows,
  // another kernel comes in between.
  if (limits.compute_capability >= 90 && query.pool == 0 && plan.one_query_each && plan.passes == 1 &&
      stage == ScoreStage::kExact && p.batch * p.num_kv_heads <= kMaxPairs) {
    plan.announced = announced_sequences(plan, p, bounds, limits);
  }

  plan.few_rows = bounds.num_queries * p.num_q_heads <= limits.multiprocessors;
  plan.score = plan_scores(p, stage, plan, limits);
  // The host does not know budgets, only that some may be dense; with no budgets at all none is.
  const bool some_dense = bounds.any_dense && p.budgets != nullptr;
  const bool every_dense = !row_of(p.method.estimator).samples && stage == ScoreStage::kExact;
  if (some_dense || every_dense) {
    plan.exact_decode = plan_exact_decode(p, limits);
    plan.exact_alone = plan.one_query_each && every_dense && plan.exact_decode.warps > 0;
  }
  plan.dense_left = some_dense && !(plan.one_query_each && plan.exact_decode.warps > 0);
  plan.short_decode = plan_short_decode(p, plan, bounds.max_length, limits);
  if (stage != ScoreStage::kExact && plan.dense_left) {
    plan.dense_score = plan_scores(p, ScoreStage::kExact, plan, limits);
  }

  const int64_t rows = int64_t{plan.pass_queries} * p.num_q_heads;
  int64_t end = kHeaderBytes;
  const auto place = [&](int64_t bytes) {
    const int64_t start = end;
    end += align(bytes);
    return start;
  };
  plan.stats_offset = place(rows * row.stats);
  plan.weights_offset = place(rows * row.weights);
  plan.partial_offset = place(rows * row.partial);
  if (plan.exact_decode.warps > 0 && exact_bytes > 0)
    plan.exact_partial_offset = place(p.batch * exact_bytes);
  if (plan.norm_stats) plan.norm_stats_offset = place(rows * row.norm_stats);
  if (query.pool > 0) {
    plan.pools_offset = place(plan.pass_queries * query.pool);
    plan.rest_below_offset = place(plan.pass_queries * query.rest_below);
  }
  if (query.row_table > 0) {
    plan.row_table_bytes = plan.pass_queries * query.row_table;
    plan.row_table_offset = place(plan.row_table_bytes);
  }

  // Not `end`: a caller may size the workspace by larger bounds and launch within smaller ones, whose windows
  // may hold more queries. So the size is computed as if the window were full and as if the batch were
  // decoded at once. This grows with every bound and is never below `end`.
  const int64_t filled =
      std::min(bounds.num_queries * query_bytes, std::max(kPassBytes, block_queries * query_bytes));
  const int64_t decoded = std::min(bounds.num_queries, p.batch) * query_bytes;
  plan.workspace_bytes = kHeaderBytes + 8 * kWorkspaceAlignment + align(std::max(filled, decoded)) +
                         align(p.batch * exact_bytes);
  return plan;
}

namespace {

template <class T>
T* at(void* workspace, int64_t offset) {
  return reinterpret_cast<T*>(static_cast<char*>(workspace) + offset);
}
// Null for offset 0, which stands for an array that the launch does not have.
template <class T>
T* at_if_any(void* workspace, int64_t offset) {
  return offset > 0 ? at<T>(workspace, offset) : nullptr;
}

}  // namespace

Divisor full_pieces(const Plan& plan, const ScorePlan& score) {
  return Divisor((plan.row_tiles + score.piece_tiles - 1) / score.piece_tiles);
}

Args make_args(const AttentionParams& launch, const LaunchBounds& bounds, const Plan& plan, void* workspace) {
  AttentionParams p = launch;
  if (!uses_value_norms(p.method)) p.value_norms = nullptr;  // by which kernels know
  const int32_t most_exact_parts = exact_most_parts(p.num_kv_heads);
  return {.p = p,
          .group = p.num_q_heads / p.num_kv_heads,
          .page_size = Divisor(p.page_size),
          .num_kv_heads = Divisor(p.num_kv_heads),
          .max_length = bounds.max_length,
          .max_budget = bounds.max_budget,
          .max_queries = bounds.max_queries,
          .any_dense = bounds.any_dense,
          .one_query_each = plan.one_query_each,
          .settled_keys = bounds.settled_keys && plan.one_query_each,
          .few_rows = plan.few_rows,
          .scored = plan.dense_score.warps > 0 ? Scored::kEstimated : Scored::kEvery,
          .exact_decode = plan.exact_decode.warps > 0,
          .exact_alone = plan.exact_alone,
          .samples = row_of(p.method.estimator).samples,
          .sample_in_every_tile = row_of(p.method.estimator).sample_in_every_tile,
          .first_query = 0,
          .pass_queries = plan.pass_queries,
          .fault = at<Fault>(workspace, 0),
          .row_tiles = plan.row_tiles,
          .stats = at<TileStats>(workspace, plan.stats_offset),
          .weights = at<uint16_t>(workspace, plan.weights_offset),
          .norm_stats = at_if_any<NormStats>(workspace, plan.norm_stats_offset),
          .partial = at<float>(workspace, plan.partial_offset),
          .arrivals = at<int32_t>(workspace, kArrivalsOffset),
          .piece_tiles = plan.score.piece_tiles,
          .full_pieces = full_pieces(plan, plan.score),
          .next_piece = at<int32_t>(workspace, kNextPieceOffset),
          .announced = plan.announced,
          .ready = at<int32_t>(workspace, kReadyOffset),
          .consumed = at<int32_t>(workspace, kConsumedOffset),
          .parts = plan.parts,
          .exact_partial = at_if_any<float>(workspace, plan.exact_partial_offset),
          .exact_parts = plan.exact_parts,
          .exact_most_parts = most_exact_parts,
          .exact_many_parts =
              kManySpans * plan.exact_decode.blocks * exact_span_parts(bounds.max_length, most_exact_parts),
          .exact_parts_beside_l2 = parts_beside_l2(p, bounds.max_length),
          .pools = at_if_any<Pool>(workspace, plan.pools_offset),
          .rest_below = at_if_any<double>(workspace, plan.rest_below_offset),
          .row_table = at_if_any<uint32_t>(workspace, plan.row_table_offset),
          .row_slots = plan.row_slots};
}

}  // namespace allot::kernels::cuda
