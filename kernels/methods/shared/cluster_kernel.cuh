// The value kernel of groups of which many rows are read: the blocks of a cluster have the parts of a row,
// choose together (held_select.cuh) and add up what they read in each other's shared memory. Needs compute
// capability 9.0.
#pragma once

#include <cstdint>

#include "kernels/cuda/kernel_table.h"
#include "kernels/methods/shared/gather_heads.cuh"
#include "kernels/methods/shared/held_select.cuh"

namespace allot::kernels::cuda {

template <int kHeadDim, bool kCorrected>
struct ClusterShape {
  static constexpr int kWarps = 8;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kMostGroup = 16;  // query heads

  struct Shared {
    HeldSelection<kWarps>::Scratch scratch;
    RowList lists[kWarps];
    WarpSums<kWarps, kHeadDim, kCorrected> sums;
    // Of the weights of all parts and heads, in every block.
    WeightSums weights[kCorrected ? kMostRowParts : 1][kCorrected ? kMostGroup : 1];
  };
  // Outputs that a block adds up, of all heads; the last may add up fewer.
  __host__ __device__ static constexpr int32_t share(int32_t heads, int32_t blocks) {
    return (heads * kHeadDim + blocks - 1) / blocks;
  }
  // Dynamic shared memory: Shared, what the parts have of this block's share, and what the selection holds.
  __host__ __device__ static constexpr int64_t outs_bytes(int32_t heads, int32_t blocks) {
    // Rows of fewer parts than blocks have larger shares.
    return (int64_t{kMostRowParts} * (share(heads, blocks) + 1) * int64_t{sizeof(float)} + 15) / 16 * 16;
  }
  static int64_t shared_bytes(int32_t tiles, int32_t heads, int32_t blocks) {
    return int64_t{sizeof(Shared)} + outs_bytes(heads, blocks) +
           HeldSelection<kWarps>::shared_bytes(most_held_tiles(tiles, blocks), heads);
  }
};

// Grid: KV heads, blocks of a cluster, queries of the pass.
template <class T, int kHeadDim, bool kCorrected>
__global__ void __launch_bounds__(ClusterShape<kHeadDim, kCorrected>::kThreads, 2)
    cluster_kernel(const __grid_constant__ Args args) {
  using Shape = ClusterShape<kHeadDim, kCorrected>;
  constexpr int kWarps = Shape::kWarps;
  constexpr int kThreads = Shape::kThreads;
  constexpr int kHeads = RowList::kHeads;
  constexpr int kHeadsAtOnce = WarpSums<kWarps, kHeadDim, kCorrected>::kHeads;
  ALLOT_DYNAMIC_SHARED(16, dynamic);
  auto& shared = *reinterpret_cast<typename Shape::Shared*>(dynamic);
  auto* const outs = reinterpret_cast<float*>(dynamic + sizeof(shared));  // [parts, share]

  RowGroup<kWarps> group(shared.scratch.group);
  const int thread = group.thread();
  const auto q = static_cast<int32_t>(blockIdx.z);
  FaultCode fault;
  const GroupRow row = group_row(args, q, static_cast<int32_t>(blockIdx.x), &fault);
  const int32_t part_count = row_part_count(row.tiles);
  const RowParts parts = {.tiles = row.tiles,
                          .parts = part_count,
                          .rank = static_cast<int32_t>(blockIdx.y),
                          .blocks = min(static_cast<int32_t>(gridDim.y), part_count)};
  const bool last_block =
      blockIdx.x == gridDim.x - 1 && blockIdx.y == gridDim.y - 1 && blockIdx.z == gridDim.z - 1;
  // As in value_kernel.
  const bool announced = row.sequence < args.announced;
  if (!announced || last_block) wait_for_predecessor();

  if (parts.rank >= parts.blocks) return;
  T* const out = static_cast<T*>(args.p.out) +
                 (int64_t{args.first_query + q} * args.p.num_q_heads + row.head) * kHeadDim;
  const int32_t elements = row.heads * kHeadDim;
  const auto fill_out = [&](float x) {
    if (parts.rank != 0) return;
#pragma unroll 1
    for (int32_t i = thread; i < elements; i += kThreads) out[i] = static_cast<T>(x);
  };
  if (fault != kFaultNone) return fill_out(NAN);
  if (row.budget == 0) return fill_out(0);
  if (row.budget == kDenseBudget) return;  // the kernel for dense sequences serves it
  arrive_at_cluster();

  const int32_t pair = row.sequence * args.p.num_kv_heads + row.kv_head;
  if (announced) {
    if (thread == 0) await(&args.ready[pair], row.tiles);
    group.sync();
  }
  const Team<kWarps> team(group, parts.rank, parts.blocks);
  const HeldSelection<kWarps> selection(
      args, row, group, team, parts, shared.scratch,
      dynamic + sizeof(shared) + Shape::outs_bytes(row.heads, static_cast<int32_t>(gridDim.y)));
  const int32_t share = Shape::share(row.heads, parts.blocks);
  RowList& list = shared.lists[group.warp()];
  // Reads the rows of each list once for kHeads heads.
#pragma unroll 1
  for (int32_t slot = 0; selection.finite() && slot < parts.slots(); ++slot) {
#pragma unroll 1
    for (int32_t first = 0; first < row.heads; first += kHeads) {
      const int32_t heads = min(row.heads - first, kHeads);
      GatherHeadsOf<T, kHeadDim, kHeads, kCorrected> gather(args, row, first, heads, group.lane());
      const int32_t read = selection.for_each_list(slot, parts.slots(), first, heads, list, gather);
      if (first == 0) count_rows(args, row, group.lane(), read);
#pragma unroll
      for (int low = 0; low < kHeads; low += kHeadsAtOnce) {
        if (low >= heads) break;
        shared.sums.leave(group.warp(), gather, low);
        group.sync();
#pragma unroll 1
        for (int32_t i = thread; i < min(heads - low, kHeadsAtOnce) * kHeadDim; i += kThreads) {
          const int32_t element = (first + low) * kHeadDim + i;
          const int32_t block = element / share;
          *team.there(outs + parts.part_of(slot) * share + element - block * share, block) =
              shared.sums.sum(i);
        }
        if constexpr (kCorrected) {
          // A thread for each head and block.
          const int32_t head = thread % kHeadsAtOnce, block = thread / kHeadsAtOnce;
          if (head < heads - low && block < parts.blocks)
            *team.there(&shared.weights[parts.part_of(slot)][first + low + head], block) =
                shared.sums.weights(head);
        }
        group.sync();
      }
    }
  }
  if (!selection.finite()) fill_out(NAN);
  group.sync();
#pragma unroll 1
  for (int32_t slot = 0; slot < parts.slots(); ++slot)
    discard_weights(args, row, parts.first_tile(slot), parts.tiles_of(slot), group);
  if (announced && thread == 0 && atomicAdd(&args.consumed[pair], 1) == parts.blocks - 1) {
    args.consumed[pair] = 0;
    args.ready[pair] = 0;
  }
  if (!selection.finite()) return;
  team.sync();
#pragma unroll 1
  for (int32_t i = thread; i < min(share, elements - parts.rank * share); i += kThreads) {
    float of_parts[kMostRowParts];
#pragma unroll
    for (int p = 0; p < kMostRowParts; ++p) of_parts[p] = p < parts.parts ? outs[p * share + i] : 0.0f;
    float x = 0;
#pragma unroll
    for (int p = 0; p < kMostRowParts; ++p) x += of_parts[p];
    if constexpr (kCorrected) {
      WeightSums weights = {};
#pragma unroll 1
      for (int p = 0; p < parts.parts; ++p) weights += shared.weights[p][(parts.rank * share + i) / kHeadDim];
      x *= weights.factor();
    }
    out[parts.rank * share + i] = static_cast<T>(x);
  }
}

template <class T, int kHeadDim, bool kCorrected>
ValueKernel make_cluster_kernel() {
  using Shape = ClusterShape<kHeadDim, kCorrected>;
  return {.function = cluster_kernel<T, kHeadDim, kCorrected>,
          .threads = Shape::kThreads,
          .groups = true,
          .cluster_bytes = Shape::shared_bytes};
}

}  // namespace allot::kernels::cuda
