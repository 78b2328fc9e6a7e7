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

// Score tiles of a pass of `queries` queries a sequence, over all sequences.
int64_t pass_tiles(const AttentionParams& p, const LaunchBounds& bounds, int64_t queries) {
  const int64_t total_length =
      bounds.total_length > 0 ? bounds.total_length : p.batch * int64_t{bounds.max_length};
  const int64_t by_sequence = queries * (total_length / kScoreTile + p.batch);
  const int64_t by_query = bounds.num_queries * score_tiles(bounds.max_length);
  return std::min(by_sequence, by_query);
}

}  // namespace

ScoreKernel score_kernel(DType dtype, int32_t head_dim, int32_t column_tiles) {
  return dtype == DType::kBFloat16 ? score_kernel_bfloat16(head_dim, column_tiles)
                                   : score_kernel_float16(head_dim, column_tiles);
}

ValueKernel value_kernel(Estimator estimator, DType dtype, int32_t head_dim, int32_t row_warps) {
  const bool bfloat16 = dtype == DType::kBFloat16;
  switch (estimator) {
    case Estimator::kThreshold:
      return (bfloat16 ? threshold_kernel_bfloat16 : threshold_kernel_float16)(head_dim, row_warps);
    case Estimator::kProp:
    case Estimator::kFlash:
      return (bfloat16 ? tiled_kernel_bfloat16 : tiled_kernel_float16)(head_dim, row_warps);
    case Estimator::kIid:
    case Estimator::kStrat:
      return (bfloat16 ? targets_kernel_bfloat16 : targets_kernel_float16)(head_dim, row_warps);
    default:
      return (bfloat16 ? systematic_kernel_bfloat16 : systematic_kernel_float16)(head_dim, row_warps);
  }
}

Plan make_plan(const AttentionParams& p, const LaunchBounds& bounds, const DeviceLimits& limits) {
  Plan plan;
  plan.one_query_each = bounds.max_queries == 1 && bounds.num_queries == p.batch;
  plan.column_tiles = choose_column_tiles(p, plan.one_query_each);

  const int64_t weight_bytes = int64_t{kScoreTile} * 2 * p.num_q_heads;
  const int64_t query_bytes = std::max<int64_t>(1, pass_tiles(p, bounds, 1) * weight_bytes);
  plan.pass_queries = static_cast<int32_t>(
      std::clamp<int64_t>(kPassWeightBytes / query_bytes, 1, std::max(1, bounds.max_queries)));
  plan.passes = static_cast<int32_t>(ceil_divide(std::max(1, bounds.max_queries), plan.pass_queries));
  plan.tile_capacity = pass_tiles(p, bounds, plan.pass_queries);

  const ScoreKernel score = score_kernel(p.dtype, p.head_dim, plan.column_tiles);
  const int64_t block_bytes = score.block_bytes + score.sequence_bytes * p.batch;
  plan.score_warps = static_cast<int32_t>(
      std::clamp<int64_t>((limits.shared_bytes_per_block - block_bytes) / score.warp_bytes, 1, 8));
  plan.score_shared_bytes = block_bytes + plan.score_warps * score.warp_bytes;
  plan.score_blocks = limits.multiprocessors;

  const bool dense = p.estimator == Estimator::kExact || bounds.any_dense;
  const int32_t entries = dense ? std::max(bounds.max_length, bounds.max_budget) : bounds.max_budget;
  const int32_t tiles = score_tiles(bounds.max_length);
  const auto shared_of = [&](int32_t row_warps) {
    const ValueKernel value = value_kernel(p.estimator, p.dtype, p.head_dim, row_warps);
    return value.rows * value.row_bytes(tiles);
  };
  constexpr int64_t kModestShared = 16 * 1024;  // leaves a multiprocessor full of blocks
  plan.row_warps = entries <= kWarpRowBudget && shared_of(1) <= kModestShared ? 1 : 8;
  plan.value_shared_bytes = shared_of(plan.row_warps);
  // A row between two lengths may have more parts than the longest one.
  plan.parts =
      entries <= kBatchEntries ? 1 : std::min<int32_t>(kMaxParts, ceil_divide(entries, kBatchEntries));

  const int64_t rows = bounds.num_queries * p.num_q_heads;
  int64_t end = kFaultBytes;
  const auto place = [&](int64_t bytes) {
    const int64_t start = end;
    end += align(bytes);
    return start;
  };
  plan.tile_start_offset = place(4 * (p.batch + 1));
  plan.stats_offset = place(plan.tile_capacity * p.num_q_heads * static_cast<int64_t>(sizeof(TileStats)));
  plan.weights_offset = place(plan.tile_capacity * weight_bytes);
  plan.partial_offset = place(plan.parts > 1 ? rows * plan.parts * p.head_dim * 4 : 0);
  plan.arrivals_offset = place(plan.parts > 1 ? rows * 4 : 0);
  plan.workspace_bytes = end;
  return plan;
}

}  // namespace allot::kernels::cuda
