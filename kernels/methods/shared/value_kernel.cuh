// The value kernel of estimators whose heads choose together: a query and a KV head are the work of some
// warps, which choose the value rows for the whole group, read each once and add it to the output of every
// head. The tiles of a query are dealt to the warps; those of long queries to several blocks, the last of
// which adds the parts in order.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/kernel_table.h"
#include "kernels/cuda/value_kernel.cuh"
#include "kernels/methods/shared/select.cuh"
#include "kernels/methods/shared/short_select.cuh"

namespace allot::kernels::cuda {

// Adds weighted value rows for several heads at once. A warp reads a row together.
template <class T, int kHeadDim, int kHeads>
class GatherHeads {
 public:
  // Consecutive elements of a lane; where head_dim is 96 the last lanes have none.
  static constexpr int kElements = kHeadDim == 96 ? 4 : kHeadDim / 32;

  __device__ __forceinline__ explicit GatherHeads(int lane) : lane_(lane) {}

  __device__ __forceinline__ void add(const void* values, const RowList& list, int32_t count, int32_t heads) {
#pragma unroll 1
    for (int32_t first = 0; first < count; first += kUnroll) {
      Vector value[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        Raw raw = {};
        if (first + u < count && active()) {
          raw = __ldg(reinterpret_cast<const Raw*>(static_cast<const T*>(values) +
                                                   int64_t{list.rows[first + u]} * kHeadDim + element()));
        }
        value[u] = *reinterpret_cast<const Vector*>(&raw);
      }
#pragma unroll
      for (int h = 0; h < kHeads; h += 4) {
        if (h >= heads) break;
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
          const float4 w = *reinterpret_cast<const float4*>(&list.weights[first + u][h]);
          const float weights[4] = {w.x, w.y, w.z, w.w};
#pragma unroll
          for (int e = 0; e < kElements; ++e) {
            const float x = element_of(value[u], e);
#pragma unroll
            for (int i = 0; i < 4; ++i) sum_[h + i][e] = fmaf(weights[i], x, sum_[h + i][e]);
          }
        }
      }
    }
  }

  // Of head h: this lane's elements.
  __device__ __forceinline__ const float (&sum(int h) const)[kElements] {
    return sum_[h];
  }

  __device__ __forceinline__ bool active() const {
    return lane_ * kElements < kHeadDim;
  }
  __device__ __forceinline__ int element() const {
    return lane_ * kElements;
  }

 private:
  static constexpr int kUnroll = 8;
  static_assert(RowList::kRows % kUnroll == 0);
  // A lane's elements as one load.
  using Raw = std::conditional_t<
      kElements == 1, uint16_t,
      std::conditional_t<kElements == 2, uint32_t, std::conditional_t<kElements == 4, uint2, uint4>>>;
  struct alignas(sizeof(Raw)) Vector {
    T elements[kElements];
  };
  __device__ __forceinline__ static float element_of(const Vector& v, int e) {
    return static_cast<float>(v.elements[e]);
  }

  int lane_;
  float sum_[kHeads][kElements] = {};
};

// Groups that a block serves.
template <int kWarps>
inline constexpr int kSharedRows = kWarps == 1 ? 4 : 1;

// What the shared kernel of a number of warps is compiled for.
enum class RowsOf {
  kAnyLength,
  kFewTiles,  // kShortTiles at most: less code and fewer registers, so that more groups are worked on at once
};
template <int kWarps, RowsOf kRowsOf>
inline constexpr int kSharedBlocks = kRowsOf == RowsOf::kFewTiles ? 6
                                     : kWarps == 8                ? 2
                                                                  : 4;

// Grid: groups of all queries / kSharedRows, parts; where a block serves one group KV heads, parts, queries
// of the pass. A part takes some of the tiles.
template <class T, int kHeadDim, int kWarps, RowsOf kRowsOf>
__global__ void __launch_bounds__(32 * kWarps * kSharedRows<kWarps>, kSharedBlocks<kWarps, kRowsOf>)
    shared_kernel(const __grid_constant__ Args args) {
  using Selection = SharedSelection<kWarps>;
  constexpr int kRows = kSharedRows<kWarps>;
  // Of a group, at once.
  constexpr int kHeads = kRowsOf == RowsOf::kFewTiles ? 4 : RowList::kHeads;
  using GatherRows = GatherHeads<T, kHeadDim, kHeads>;
  constexpr int kHeadsAtOnce = 4;
  __shared__ typename RowGroup<kWarps>::Scratch scratch[kRows];
  __shared__ RowList lists[kRows * kWarps];
  // Of the warps, where several work on a group.
  __shared__ float sums[kWarps == 1 ? 1 : kWarps][kHeadsAtOnce][kWarps == 1 ? 1 : kHeadDim];
  __shared__ bool last_part;
  ALLOT_DYNAMIC_SHARED(16, selection_shared);

  const int slot = static_cast<int>(threadIdx.x) / RowGroup<kWarps>::kThreads;
  RowGroup<kWarps> group(scratch[slot]);
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
  GroupRow row;
  row.query = q;
  row.kv_head = kv_head;
  row.heads = args.group;
  row.head = row.kv_head * args.group;
  row.row_tiles = args.row_tiles;
  row.sequence = sequence_of(args, query);
  FaultCode fault;
  const PassSequence sequence = pass_sequence(args, row.sequence, &fault);
  row.budget = budget_of(args, row.sequence);
  row.keys = sequence.visible(q - sequence.slot);
  row.tiles = score_tiles(row.keys);
  row.wanted = rows_of_group(args.p.method.unit, row.budget, row.heads);
  const int32_t parts = kWarps < 8 ? 1 : shared_part_count(row.wanted, row.keys);
  const int64_t index = int64_t{q} * args.p.num_q_heads + row.head;
  row.stats = args.stats + index * args.row_tiles;
  row.weights = args.weights + index * args.row_tiles * kScoreTile;
  row.norm_stats = args.norm_stats == nullptr ? nullptr : args.norm_stats + index * args.row_tiles;
  const SequenceDraws& draws = args.p.draws[row.sequence];
  const int32_t first_head = args.pools == nullptr ? row.head : 0;  // of those that choose together
  row.draws = {draws.key, draws.question, args.p.layer, static_cast<uint32_t>(first_head),
               static_cast<uint32_t>(row.keys - 1)};
  const bool last_block =
      blockIdx.x == gridDim.x - 1 && blockIdx.y == gridDim.y - 1 && blockIdx.z == gridDim.z - 1;
  // As in value_kernel.
  if (args.ready == nullptr || last_block) wait_for_predecessor();
  if (last_block && threadIdx.x == 0) *args.next_piece = 0;

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
  if (args.ready != nullptr) {
    if (group.thread() == 0) await(&args.ready[pair], row.tiles);
    group.sync();
  }
  RowList& list = lists[slot * kWarps + group.warp()];
  float* const partial = args.partial + index * args.parts * kHeadDim;
  // Reads the rows of each list once for kHeads heads. False where a score is not finite.
  const auto add_rows = [&](const auto& selection) {
    if (!selection.finite()) return false;
#pragma unroll 1
    for (int32_t first = 0; first < row.heads; first += kHeads) {
      const int32_t heads = min(row.heads - first, kHeads);
      GatherRows gather(group.lane());
      const int32_t read = selection.for_each_list(part, parts, first, heads, list, [&](int32_t count) {
        gather.add(args.p.value_pages, list, count, heads);
      });
      if (first == 0 && group.lane() == 0 && args.p.rows_read != nullptr && read > 0) {
        atomicAdd(reinterpret_cast<unsigned long long*>(&args.p.rows_read[row.sequence]),
                  static_cast<unsigned long long>(read));
      }
#pragma unroll
      for (int low = 0; low < kHeads; low += kHeadsAtOnce) {
        if (low >= heads) break;
        const int32_t end = min(heads - low, kHeadsAtOnce);
        T* const head_out = out + (first + low) * kHeadDim;
        if constexpr (kWarps == 1) {
#pragma unroll
          for (int h = 0; h < kHeadsAtOnce; ++h) {
            if (h < end && gather.active()) {
#pragma unroll
              for (int e = 0; e < GatherRows::kElements; ++e)
                head_out[h * kHeadDim + gather.element() + e] = static_cast<T>(gather.sum(low + h)[e]);
            }
          }
        } else {
#pragma unroll
          for (int h = 0; h < kHeadsAtOnce; ++h) {
#pragma unroll
            for (int e = 0; e < GatherRows::kElements; ++e)
              if (gather.active()) sums[group.warp()][h][gather.element() + e] = gather.sum(low + h)[e];
          }
          group.sync();
#pragma unroll 1
          for (int i = group.thread(); i < end * kHeadDim; i += group.kThreads) {
            const int h = i / kHeadDim;
            float x = 0;
#pragma unroll
            for (int w = 0; w < kWarps; ++w) x += sums[w][h][i % kHeadDim];
            if (parts == 1) {
              head_out[i] = static_cast<T>(x);
            } else {
              const int64_t place = int64_t{first + low + h} * args.parts + part;
              partial[place * kHeadDim + i % kHeadDim] = x;
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
  if (kRowsOf == RowsOf::kFewTiles || (kWarps == 1 && row.tiles <= kShortTiles && args.pools == nullptr)) {
    finite = add_rows(ShortSelection(args, row, group.lane(), own_shared));
  } else if constexpr (kRowsOf == RowsOf::kAnyLength) {
    finite = add_rows(Selection(args, row, group, own_shared));
  }
  if (!finite) fill_out(NAN);
  if (args.ready != nullptr && group.thread() == 0 && atomicAdd(&args.consumed[pair], 1) == parts - 1) {
    args.consumed[pair] = 0;
    args.ready[pair] = 0;
  }
  if (parts == 1 || !finite) return;
  __threadfence();
  group.sync();
  if (group.thread() == 0) last_part = atomicAdd(&args.arrivals[index], 1) == parts - 1;
  group.sync();
  if (!last_part) return;
  __threadfence();
  if (group.thread() == 0) args.arrivals[index] = 0;
#pragma unroll 1
  for (int i = group.thread(); i < row.heads * kHeadDim; i += group.kThreads) {
    float x = 0;
#pragma unroll 4
    for (int k = 0; k < parts; ++k) {
      const int64_t place = int64_t{i / kHeadDim} * args.parts + k;
      x += __ldcg(&partial[place * kHeadDim + i % kHeadDim]);
    }
    out[i] = static_cast<T>(x);
  }
}

template <class T, int kHeadDim, int kWarps, RowsOf kRowsOf = RowsOf::kAnyLength>
ValueKernel make_shared_kernel() {
  return {.function = shared_kernel<T, kHeadDim, kWarps, kRowsOf>,
          .threads = 32 * kWarps * kSharedRows<kWarps>,
          .rows = kSharedRows<kWarps>,
          .groups = true,
          .row_bytes = SharedSelection<kWarps>::shared_bytes};
}

template <class T, int kHeadDim>
ValueKernel shared_kernel(int32_t row_warps) {
  switch (row_warps) {
    case kShortRow:
      return make_shared_kernel<T, kHeadDim, 1, RowsOf::kFewTiles>();
    case 1:
      return make_shared_kernel<T, kHeadDim, 1>();
    case 4:
      return make_shared_kernel<T, kHeadDim, 4>();
    default:
      return make_shared_kernel<T, kHeadDim, 8>();
  }
}

}  // namespace allot::kernels::cuda
