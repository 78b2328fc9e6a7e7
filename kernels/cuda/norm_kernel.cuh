// The statistics of score tiles where the size of a value row takes in its norm (`joint` with value-norms,
// kernels/methods/shared/method.h): the CDF of such sizes does not follow from the sums of the weights. It
// reads the weights once more, most of them from the cache, and a number for each value row.
#pragma once

#include <cstdint>

#include "kernels/cuda/kernel_table.h"
#include "kernels/cuda/value_row.cuh"

namespace allot::kernels::cuda {

inline constexpr int kNormWarps = 8;  // of a block; each works by itself
inline constexpr int32_t kNormTiles = 32 / kTileLanes;

// Warps that share the tiles of a query and KV head.
__host__ __device__ constexpr int32_t norm_units(int32_t row_tiles) {
  return (row_tiles + kNormTiles - 1) / kNormTiles;
}

// Grid: units of all queries of the pass and KV heads. Eight lanes share a tile, as its weights lie: lane 4 v
// + t has the eight keys 8 n + 2 t + e, n = 4 v .. 4 v + 3 (stage_order.h).
static __global__ void __launch_bounds__(32 * kNormWarps) sum_norms(const __grid_constant__ Args args) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int64_t unit = int64_t{blockIdx.x} * kNormWarps + static_cast<int>(threadIdx.x) / 32;
  const int32_t units = norm_units(args.row_tiles);
  const int64_t pair = unit / units;  // of a query and a KV head
  const auto q = static_cast<int32_t>(pair / args.p.num_kv_heads);
  let_dependents_start();
  wait_for_predecessor();
  if (q >= args.pass_queries) return;
  ValueRow row;
  row.kv_head = static_cast<int32_t>(pair % args.p.num_kv_heads);
  row.sequence = sequence_of(args, args.first_query + q);
  FaultCode fault;
  const PassSequence pass = pass_sequence(args, row.sequence, &fault);
  if (fault != kFaultNone || budget_of(args, row.sequence) <= 0) return;  // the value kernels see to them
  row.keys = pass.visible(q - pass.slot);
  const int32_t tile = static_cast<int32_t>(unit % units) * kNormTiles + lane / kTileLanes;
  const bool valid = tile < score_tiles(row.keys);
  const auto norm_at = [&](int32_t key) {
    const int32_t entry = args.page_size.quotient(key);
    const int32_t page = args.p.page_table[int64_t{row.sequence} * args.p.max_pages + entry];
    // A page outside the pool is a fault that the score kernel has recorded: the row becomes NaN.
    const bool known = page >= 0 && page < args.p.num_pages;
    return args.p.value_norms + pool_row(args, known ? page : 0, row.kv_head, key, entry);
  };
  const int v = lane % kTileLanes / 4;
  const int t = lane % 4;

  float norms[8];
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    const int32_t key = tile * kScoreTile + 8 * (4 * v + n) + 2 * t;
    const bool seen = valid && key < row.keys;
    float2 two = {0, 0};
    if (seen) two = *reinterpret_cast<const float2*>(norm_at(key));
    norms[2 * n] = two.x;
    // Behind the last key lies anything.
    norms[2 * n + 1] = key + 1 < row.keys ? two.y : 0;
  }
  const int64_t first = int64_t{q} * args.p.num_q_heads + int64_t{row.kv_head} * args.group;
#pragma unroll 1
  for (int32_t head = 0; head < args.group; ++head) {
    const int64_t index = (first + head) * args.row_tiles + tile;
    uint4 weights = {0, 0, 0, 0};
    if (valid) weights = *reinterpret_cast<const uint4*>(args.weights + index * kScoreTile + 32 * v + 8 * t);
    const uint32_t pairs[4] = {weights.x, weights.y, weights.z, weights.w};
    NormStats stats = {0, 0};
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const float2 two = unpack<__half>(pairs[n]);
      const float low = two.x * norms[2 * n], high = two.y * norms[2 * n + 1];
      stats.sum += low + high;
      stats.max = fmaxf(stats.max, fmaxf(low, high));
    }
#pragma unroll
    for (int d = 1; d < kTileLanes; d *= 2) {
      stats.sum += __shfl_xor_sync(kFullWarp, stats.sum, d);
      stats.max = fmaxf(stats.max, __shfl_xor_sync(kFullWarp, stats.max, d));
    }
    if (valid && lane % kTileLanes == 0) args.norm_stats[index] = stats;
  }
}

inline NormKernel make_norm_kernel() {
  return {.function = sum_norms, .threads = 32 * kNormWarps, .units = norm_units};
}

}  // namespace allot::kernels::cuda
