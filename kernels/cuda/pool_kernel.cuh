// What the groups of a query share where its value rows are shared out among them (`pooled`,
// kernels/methods/shared/method.h): tau, which solves the sum of min(1, size / tau) over the rows of all
// groups = rows wanted, and the targets of what is not kept. A block works on a query; tau falls in steps
// that keep more rows each, as in SharedSelection, and every step looks only into score tiles that may hold a
// row of at least tau.
#pragma once

#include "kernels/cuda/group_sizes.cuh"
#include "kernels/cuda/kernel_table.h"

namespace allot::kernels::cuda {

// Whatever the launch, so that the order of sums is.
inline constexpr int kPoolWarps = 16;

// Warps that share the tiles of a group.
__host__ __device__ constexpr int32_t team_of(int32_t groups) {
  return groups < kPoolWarps ? kPoolWarps / groups : 1;
}

// Of the tiles in every `stride`-th run of 32 from `first` on; in every lane of the warp.
__device__ __forceinline__ Split split_at(const GroupRow& row, const GroupSizes& sizes, float tau,
                                          int32_t first, int32_t stride, int lane) {
  Split split = {0, 0};
#pragma unroll 1
  for (int32_t begin = 32 * first; begin < row.tiles; begin += 32 * stride) {
    const int32_t own = begin + lane;
    const GroupSizes::Tile tile = own < row.tiles ? sizes.tile_of(own) : GroupSizes::Tile{0, 0};
    const bool hot = own < row.tiles && tile.bound >= tau;
    if (!hot) split.rest += static_cast<double>(tile.mass);
#pragma unroll 1
    for (uint32_t left = __ballot_sync(kFullWarp, hot); left != 0;) {
      const uint32_t place = __fns(left, 0, lane / kTileLanes + 1);
      const bool wanted = place < 32;
      float of_tile[1][8];
      sizes.of<1, false>({begin + static_cast<int32_t>(wanted ? place : 0)}, {wanted}, of_tile);
      const SplitOfEight own = split_of(of_tile[0], tau);
      split.kept += own.kept;
      split.rest += static_cast<double>(own.rest);
#pragma unroll
      for (int i = 0; i < GroupSizes::kQuad; ++i) left &= left - 1;
    }
  }
#pragma unroll
  for (int d = 16; d > 0; d /= 2) {
    split.rest += __shfl_xor_sync(kFullWarp, split.rest, d);
    split.kept += __shfl_xor_sync(kFullWarp, split.kept, d);
  }
  return split;
}

// Grid: queries of the pass.
static __global__ void __launch_bounds__(32 * kPoolWarps, 2) find_pools(const __grid_constant__ Args args) {
  ALLOT_DYNAMIC_SHARED(16, shared);
  __shared__ int32_t kept_rows;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int32_t heads = args.p.num_q_heads;
  const int32_t groups = args.p.num_kv_heads;
  const int32_t team = team_of(groups);
  auto* const rests = reinterpret_cast<double*>(shared);                     // [groups, team]
  auto* const scales = reinterpret_cast<HeadScale*>(rests + groups * team);  // [heads]

  const auto q = static_cast<int32_t>(blockIdx.x);
  const int32_t sequence = sequence_of(args, args.first_query + q);
  FaultCode fault;
  const PassSequence pass = pass_sequence(args, sequence, &fault);
  const int32_t budget = budget_of(args, sequence);
  const int32_t keys = pass.visible(q - pass.slot);
  const auto group_row = [&](int32_t group) {
    GroupRow row;
    row.keys = keys;
    row.tiles = score_tiles(keys);
    row.heads = args.group;
    row.row_tiles = args.row_tiles;
    const int64_t first = int64_t{q} * heads + group * args.group;
    row.stats = args.stats + first * args.row_tiles;
    row.weights = args.weights + first * args.row_tiles * kScoreTile;
    return row;
  };
  let_dependents_start();
  wait_for_predecessor();
  if (fault != kFaultNone || budget <= 0) return;  // the value kernels see to them

  bool finite = true;
#pragma unroll 1
  for (int32_t head = warp; head < heads; head += kPoolWarps) {
    const HeadScale scale = GroupSizes::scale_of_head(group_row(head / args.group), head % args.group, lane);
    finite = finite && isfinite(scale.inverse_total);
    if (lane == 0) scales[head] = scale;
  }
  Pool& pool = args.pools[q];
  if (__syncthreads_and(finite ? 1 : 0) == 0) {
    if (threadIdx.x == 0) pool = {.total = NAN, .step = 1, .tau = 0, .drawn = 0};
    return;
  }

  const int64_t wanted = rows_of_group(args.p.method.unit, budget, args.group) * groups;
  const int64_t all = int64_t{groups} * keys;
  const auto rows = static_cast<int32_t>(wanted < all ? wanted : all);
  // The probabilities of every head add up to 1. With a row for every key, all are kept.
  float tau = rows == all ? 0.0f : static_cast<float>(heads) / static_cast<float>(rows);
  int32_t kept = 0;
  double rest = 0;
#pragma unroll 1
  for (int32_t before = 0;; before = kept) {
    if (threadIdx.x == 0) kept_rows = 0;
    __syncthreads();
#pragma unroll 1
    for (int32_t unit = warp; unit < groups * team; unit += kPoolWarps) {
      const int32_t group = unit / team;
      const GroupRow row = group_row(group);
      const Split split = split_at(row, GroupSizes(args, row, scales + group * args.group, lane), tau,
                                   unit % team, team, lane);
      if (lane == 0) {
        rests[unit] = split.rest;
        atomicAdd(&kept_rows, split.kept);
      }
    }
    __syncthreads();
    kept = kept_rows;
    rest = 0;
#pragma unroll 1
    for (int32_t unit = 0; unit < groups * team; ++unit) rest += rests[unit];
    if (kept == before || kept >= rows) break;
    const auto next = static_cast<float>(rest / (rows - kept));
    if (!(next < tau)) break;
    tau = next;
    __syncthreads();  // before the sums are written again
  }
  if (threadIdx.x != 0) return;
  const int32_t drawn = rest > 0 ? max(0, rows - kept) : 0;
  pool = {.total = 1, .step = drawn > 0 ? rest / drawn : 1, .tau = tau, .drawn = drawn};
  double* const rest_below = args.rest_below + int64_t{q} * (groups + 1);
  double below = 0;
#pragma unroll 1
  for (int32_t group = 0; group < groups; ++group) {
    rest_below[group] = below;
    for (int32_t unit = group * team; unit < (group + 1) * team; ++unit) below += rests[unit];
  }
  rest_below[groups] = below;
}

inline PoolKernel make_pool_kernel() {
  return {.function = find_pools,
          .threads = 32 * kPoolWarps,
          .shared_bytes = [](int32_t num_q_heads, int32_t num_kv_heads) {
            return int64_t{num_kv_heads} * team_of(num_kv_heads) * int64_t{sizeof(double)} +
                   num_q_heads * int64_t{sizeof(HeadScale)};
          }};
}

}  // namespace allot::kernels::cuda
