#include "kernels/cuda/plan.h"

#include <algorithm>

#include "kernels/cuda/args.h"

namespace allot::kernels::cuda {
namespace {

constexpr int64_t align(int64_t bytes) {
  return (bytes + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
}
constexpr int64_t ceil_divide(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// Columns for one query of every head in decode; as wide as registers allow in prefill, where a wider product
// reads the keys less often.
int32_t choose_column_tiles(const AttentionParams& p, bool decode) {
  const int32_t group = p.num_q_heads / p.num_kv_heads;
  if (decode) return group <= 8 ? 1 : 2;
  return p.head_dim <= 128 ? 4 : 2;
}

}  // namespace

ScoreKernel score_kernel(DType dtype, int32_t head_dim, int32_t column_tiles, bool decode) {
  return (dtype == DType::kBFloat16 ? score_kernel_bfloat16 : score_kernel_float16)(head_dim, column_tiles,
                                                                                    decode);
}

ValueKernel dense_kernel(DType dtype, int32_t head_dim, int32_t row_warps) {
  return (dtype == DType::kBFloat16 ? dense_kernel_bfloat16 : dense_kernel_float16)(head_dim, row_warps);
}

ValueKernel value_kernel(Estimator estimator, DType dtype, int32_t head_dim, int32_t row_warps) {
  const bool bfloat16 = dtype == DType::kBFloat16;
  switch (estimator) {
    case Estimator::kThreshold:
      return (bfloat16 ? threshold_kernel_bfloat16 : threshold_kernel_float16)(head_dim, row_warps);
    case Estimator::kProp:
    case Estimator::kFlash:
      return (bfloat16 ? tiled_kernel_bfloat16 : tiled_kernel_float16)(head_dim, row_warps);
    case Estimator::kExact:
      return dense_kernel(dtype, head_dim, row_warps);
    default:
      return (bfloat16 ? targets_kernel_bfloat16 : targets_kernel_float16)(head_dim, row_warps);
  }
}

Plan make_plan(const AttentionParams& p, const LaunchBounds& bounds, const DeviceLimits& limits) {
  Plan plan;
  plan.one_query_each = bounds.max_queries == 1 && bounds.num_queries == p.batch;
  plan.column_tiles = choose_column_tiles(p, plan.one_query_each);

  plan.row_tiles = score_tiles(bounds.max_length);
  const int64_t query_tiles = int64_t{p.num_q_heads} * plan.row_tiles;
  const int64_t query_bytes = query_tiles * kScoreTile * 2;
  // A window that cuts blocks of queries short would read the keys more often than needed.
  const int64_t block_queries = 8 * plan.column_tiles / (p.num_q_heads / p.num_kv_heads);
  const int64_t window =
      std::max(kPassWeightBytes / query_bytes / block_queries * block_queries, block_queries);
  plan.pass_queries =
      static_cast<int32_t>(plan.one_query_each ? bounds.num_queries : std::min(window, bounds.num_queries));
  plan.passes = static_cast<int32_t>(ceil_divide(bounds.num_queries, std::max(1, plan.pass_queries)));

  const ScoreKernel score = score_kernel(p.dtype, p.head_dim, plan.column_tiles, plan.one_query_each);
  const int64_t block_bytes = score.block_bytes + score.sequence_bytes * p.batch;
  plan.score_warps = static_cast<int32_t>(
      std::clamp<int64_t>((limits.shared_bytes_per_block - block_bytes) / score.warp_bytes, 1, 8));
  plan.score_shared_bytes = block_bytes + plan.score_warps * score.warp_bytes;
  plan.score_blocks = limits.multiprocessors;

  const bool dense = p.estimator == Estimator::kExact || bounds.any_dense;
  const int32_t entries = dense ? std::max(bounds.max_length, bounds.max_budget) : bounds.max_budget;
  const auto shared_of = [&](int32_t row_warps) {
    const ValueKernel value = value_kernel(p.estimator, p.dtype, p.head_dim, row_warps);
    return value.rows * value.row_bytes(plan.row_tiles);
  };
  constexpr int64_t kModestShared = 16 * 1024;  // leaves a multiprocessor full of blocks
  plan.row_warps = entries <= kWarpRowBudget && shared_of(1) <= kModestShared ? 1 : 8;
  // A row between two lengths may have more parts than the longest one.
  plan.parts =
      entries <= kBatchEntries ? 1 : std::min<int32_t>(kMaxParts, ceil_divide(entries, kBatchEntries));

  const int64_t rows = int64_t{plan.pass_queries} * p.num_q_heads;
  int64_t end = kFaultBytes;
  const auto place = [&](int64_t bytes) {
    const int64_t start = end;
    end += align(bytes);
    return start;
  };
  plan.stats_offset = place(plan.pass_queries * query_tiles * static_cast<int64_t>(sizeof(TileStats)));
  plan.weights_offset = place(plan.pass_queries * query_bytes);
  plan.partial_offset = place(plan.parts > 1 ? rows * plan.parts * p.head_dim * 4 : 0);
  plan.arrivals_offset = place(plan.parts > 1 ? rows * 4 : 0);
  plan.workspace_bytes = end;
  return plan;
}

}  // namespace allot::kernels::cuda
