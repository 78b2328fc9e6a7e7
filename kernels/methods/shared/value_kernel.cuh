// The value kernel of estimators whose heads choose together: a query and a KV head are the work of some
// warps, which choose the value rows for the whole group, read each once and add it to the output of every
// head. The tiles of a query are dealt to the warps; those of long queries to several blocks, the last of
// which adds the parts in order.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/kernel_table.h"
#include "kernels/cuda/value_kernel.cuh"
#include "kernels/methods/shared/cluster_kernel.cuh"
#include "kernels/methods/shared/gather_heads.cuh"
#include "kernels/methods/shared/held_select.cuh"
#include "kernels/methods/shared/select.cuh"
#include "kernels/methods/shared/short_select.cuh"

namespace allot::kernels::cuda {

// Groups that a block serves.
template <int kWarps>
inline constexpr int kSharedRows = kWarps == 1 ? 4 : 1;

// What the shared kernel of a number of warps is compiled for.
enum class RowsOf {
  kAnyLength,
  kHeld,      // their sizes fit in shared memory (held_select.cuh)
  kFewTiles,  // kShortTiles at most: less code and fewer registers, so that more groups are worked on at once
};
template <int kWarps>
struct PlainScratch {
  typename RowGroup<kWarps>::Scratch group;
};
template <int kWarps, RowsOf kRowsOf>
inline constexpr int kSharedBlocks = kRowsOf == RowsOf::kFewTiles ? 6
                                     : kWarps == 8                ? 2
                                                                  : 4;

// Grid: groups of all queries / kSharedRows, parts; where a block serves one group KV heads, parts, queries
// of the pass. A part takes some of the tiles.
// kCorrected where keys are split and have a low plane.
template <class T, int kHeadDim, int kWarps, RowsOf kRowsOf, bool kCorrected>
__global__ void __launch_bounds__(32 * kWarps * kSharedRows<kWarps>, kSharedBlocks<kWarps, kRowsOf>)
    shared_kernel(const __grid_constant__ Args args) {
  constexpr bool kHeld = kRowsOf == RowsOf::kHeld;
  using Selection = std::conditional_t<kHeld, HeldSelection<kWarps>, SharedSelection<kWarps>>;
  using Scratch = std::conditional_t<kHeld, typename HeldSelection<kWarps>::Scratch, PlainScratch<kWarps>>;
  constexpr int kRows = kSharedRows<kWarps>;
  // Of a group, at once.
  constexpr int kHeads = kRowsOf == RowsOf::kFewTiles ? 4 : RowList::kHeads;
  using GatherRows = GatherHeadsOf<T, kHeadDim, kHeads, kCorrected, kRowsOf != RowsOf::kFewTiles>;
  using Sums = WarpSums<kWarps, kWarps == 1 ? 1 : kHeadDim, kCorrected>;
  // Of a part's sums, behind which those of the weights lie.
  constexpr int kPartFloats = kHeadDim + (kCorrected ? kWeightSumRoom : 0);
  constexpr int kHeadsAtOnce = Sums::kHeads;
  __shared__ Scratch scratch[kRows];
  __shared__ RowList lists[kRows * kWarps];
  // Of the warps, where several work on a group.
  __shared__ Sums sums;
  __shared__ bool last_part;
  ALLOT_DYNAMIC_SHARED(16, selection_shared);

  const int slot = static_cast<int>(threadIdx.x) / RowGroup<kWarps>::kThreads;
  RowGroup<kWarps> group(scratch[slot].group);
  auto q = static_cast<int32_t>(blockIdx.z);
  auto kv_head = static_cast<int32_t>(blockIdx.x);
  bool exists = true;
  if constexpr (kRows > 1) {
    const int32_t unit = static_cast<int32_t>(blockIdx.x) * kRows + slot;
    const int32_t of_unit = args.num_kv_heads.quotient(unit);
    exists = of_unit < args.pass_queries;
    q = exists ? of_unit : 0;
    kv_head = exists ? unit - of_unit * args.num_kv_heads.value() : 0;
  }
  const auto part = static_cast<int32_t>(blockIdx.y);
  const int32_t query = args.first_query + q;
  FaultCode fault;
  const GroupRow row = group_row(args, q, kv_head, &fault);
  const int32_t parts = kWarps < 8 ? 1 : shared_part_count(row.wanted, row.keys);
  const int64_t index = int64_t{q} * args.p.num_q_heads + row.head;
  const bool last_block =
      blockIdx.x == gridDim.x - 1 && blockIdx.y == gridDim.y - 1 && blockIdx.z == gridDim.z - 1;
  // As in value_kernel.
  const bool announced = row.sequence < args.announced;
  if (!announced || last_block) wait_for_predecessor();

  if (!exists || part >= parts) return;
  T* const out = static_cast<T*>(args.p.out) + (int64_t{query} * args.p.num_q_heads + row.head) * kHeadDim;
  const auto fill_out = [&](float x) {
    if (part != 0) return;
#pragma unroll 1
    for (int i = group.thread(); i < row.heads * kHeadDim; i += group.kThreads) out[i] = static_cast<T>(x);
  };
  if (fault != kFaultNone) return fill_out(NAN);
  if (row.budget == 0) return fill_out(0);
  if (row.budget == kDenseBudget) return;  // the kernel for dense sequences serves it

  const int32_t pair = row.sequence * args.p.num_kv_heads + row.kv_head;
  if (announced) {
    if (group.thread() == 0) await(&args.ready[pair], row.tiles);
    group.sync();
  }
  RowList& list = lists[slot * kWarps + group.warp()];
  float* const partial = args.partial + index * args.parts * kPartFloats;
  // Reads the rows of each list once for kHeads heads. False where a score is not finite.
  const auto add_rows = [&](const auto& selection) {
    if (!selection.finite()) return false;
#pragma unroll 1
    for (int32_t first = 0; first < row.heads; first += kHeads) {
      const int32_t heads = min(row.heads - first, kHeads);
      GatherRows gather(args, row, first, heads, group.lane());
      const int32_t read = selection.for_each_list(part, parts, first, heads, list, gather);
      if (first == 0) count_rows(args, row, group.lane(), read);
#pragma unroll
      for (int low = 0; low < kHeads; low += kHeadsAtOnce) {
        if (low >= heads) break;
        const int32_t end = min(heads - low, kHeadsAtOnce);
        T* const head_out = out + (first + low) * kHeadDim;
        if constexpr (kWarps == 1) {
          float own_factor = 1;  // of head low + lane % 4
          if constexpr (kCorrected) own_factor = gather.weights(low).factor();
#pragma unroll
          for (int h = 0; h < kHeadsAtOnce; ++h) {
            const float factor = kCorrected ? __shfl_sync(kFullWarp, own_factor, h) : 1.0f;
            if (h < end && gather.active()) {
#pragma unroll
              for (int e = 0; e < GatherRows::kElements; ++e)
                head_out[h * kHeadDim + gather.element() + e] =
                    static_cast<T>(kCorrected ? gather.sum(low + h)[e] * factor : gather.sum(low + h)[e]);
            }
          }
        } else {
          sums.leave(group.warp(), gather, low);
          group.sync();
#pragma unroll 1
          for (int i = group.thread(); i < end * kHeadDim; i += group.kThreads) {
            float x = sums.sum(i);
            if (parts == 1) {
              if constexpr (kCorrected) x *= sums.weights(i / kHeadDim).factor();
              head_out[i] = static_cast<T>(x);
            } else {
              const int64_t place = int64_t{first + low + i / kHeadDim} * args.parts + part;
              partial[place * kPartFloats + i % kHeadDim] = x;
              if constexpr (kCorrected) {
                if (i % kHeadDim == 0)
                  *reinterpret_cast<WeightSums*>(&partial[place * kPartFloats + kHeadDim]) =
                      sums.weights(i / kHeadDim);
              }
            }
          }
          group.sync();
        }
      }
    }
    return true;
  };
  char* const own_shared = selection_shared + slot * Selection::shared_bytes(args.row_tiles, row.heads);
  bool finite = false;
  if (kRowsOf == RowsOf::kFewTiles || (kHeld && kWarps == 1 && row.tiles <= kShortTiles)) {
    finite = add_rows(ShortSelection(args, row, group.lane(), own_shared));
  } else if constexpr (kHeld) {
    const Team<kWarps> alone(group, 0, 1);
    const RowParts whole = {.tiles = row.tiles, .parts = 1, .rank = 0, .blocks = 1};
    finite = add_rows(Selection(args, row, group, alone, whole, scratch[slot], own_shared));
  } else if constexpr (kRowsOf == RowsOf::kAnyLength) {
    finite = add_rows(Selection(args, row, group, own_shared));
  }
  if (!finite) fill_out(NAN);
  if (parts == 1) {
    group.sync();
    discard_weights(args, row, 0, row.tiles, group);
  }
  if (announced && group.thread() == 0 && atomicAdd(&args.consumed[pair], 1) == parts - 1) {
    args.consumed[pair] = 0;
    args.ready[pair] = 0;
  }
  if (parts == 1 || !finite) return;
  group.sync();
  if (group.thread() == 0) last_part = arrives_last(&args.arrivals[index], parts);
  group.sync();
  if (!last_part) return;
#pragma unroll 1
  for (int i = group.thread(); i < row.heads * kHeadDim; i += group.kThreads) {
    float x = 0;
    WeightSums weights = {};
#pragma unroll 4
    for (int k = 0; k < parts; ++k) {
      const float* const of_part = &partial[(int64_t{i / kHeadDim} * args.parts + k) * kPartFloats];
      x += __ldcg(of_part + i % kHeadDim);
      if constexpr (kCorrected) weights += {__ldcg(of_part + kHeadDim), __ldcg(of_part + kHeadDim + 1)};
    }
    if constexpr (kCorrected) x *= weights.factor();
    out[i] = static_cast<T>(x);
  }
}

template <class T, int kHeadDim, bool kCorrected, int kWarps, RowsOf kRowsOf = RowsOf::kAnyLength>
ValueKernel make_shared_kernel() {
  return {.function = shared_kernel<T, kHeadDim, kWarps, kRowsOf, kCorrected>,
          .threads = 32 * kWarps * kSharedRows<kWarps>,
          .rows = kSharedRows<kWarps>,
          .groups = true,
          .row_bytes = kRowsOf == RowsOf::kHeld ? HeldSelection<kWarps>::shared_bytes
                                                : SharedSelection<kWarps>::shared_bytes};
}

template <class T, int kHeadDim, bool kCorrected = false>
ValueKernel shared_kernel(Workers workers) {
  switch (workers) {
    case Workers::kWarpOfShortRow:
      return make_shared_kernel<T, kHeadDim, kCorrected, 1, RowsOf::kFewTiles>();
    case Workers::kWarp:
      return make_shared_kernel<T, kHeadDim, kCorrected, 1>();
    case Workers::kFourWarps:
      return make_shared_kernel<T, kHeadDim, kCorrected, 4>();
    case Workers::kWarpThatHolds:
      return make_shared_kernel<T, kHeadDim, kCorrected, 1, RowsOf::kHeld>();
    case Workers::kFourWarpsThatHold:
      return make_shared_kernel<T, kHeadDim, kCorrected, 4, RowsOf::kHeld>();
    case Workers::kCluster:
      return make_cluster_kernel<T, kHeadDim, kCorrected>();
    default:
      return make_shared_kernel<T, kHeadDim, kCorrected, 8>();
  }
}

}  // namespace allot::kernels::cuda
