// The value kernel of estimators whose heads choose together: a query and a KV head are the work of some
// warps, which choose the value rows for the whole group, read each once and add it to the output of every
// head. Queries with many rows are shared by several blocks, the last of which adds the parts in order.
#pragma once

#include <cstdint>

#include "kernels/cuda/kernel_table.h"
#include "kernels/cuda/select_shared.cuh"
#include "kernels/cuda/value_kernel.cuh"

namespace allot::kernels::cuda {

// Rows that are gathered before the next batch is chosen.
template <int kWarps>
inline constexpr int kSharedBatch = 32 * kWarps;  // a sample for each thread

// Adds weighted value rows for four heads at once. Lanes hold 8 consecutive elements, as in Gather.
template <class T, int kHeadDim, int kWarps>
class GatherHeads {
  using Lanes = Gather<T, kHeadDim, kWarps>;

 public:
  static constexpr int kHeads = 4;
  static constexpr int kUnroll = 8;

  __device__ __forceinline__ GatherHeads(int warp, int lane)
      : stream_(warp * (32 / Lanes::kRowLanes) + lane / Lanes::kRowLanes),
        element_(lane % Lanes::kRowLanes * 8),
        active_(element_ < kHeadDim) {}

  // Heads first .. first + kHeads of the group, as far as it has them.
  template <int kBatch>
  __device__ __forceinline__ void add(const void* values, const SharedBatch<kBatch>& batch, int32_t first,
                                      int32_t heads) {
    const int32_t count = batch.high - batch.low;
#pragma unroll 1
    for (int32_t base = stream_; base < count; base += Lanes::kStreams * kUnroll) {
      uint4 value[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const int32_t e = base + u * Lanes::kStreams;
        value[u] = {0, 0, 0, 0};
        if (e < count && active_) {
          value[u] =
              load_value_vector(static_cast<const T*>(values) + int64_t{batch.rows[e]} * kHeadDim + element_);
        }
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const int32_t e = min(base + u * Lanes::kStreams, count - 1);
        const uint32_t words[4] = {value[u].x, value[u].y, value[u].z, value[u].w};
#pragma unroll
        for (int h = 0; h < kHeads; ++h) {
          const float weight = batch.weights[min(first + h, heads - 1) * kBatch + e];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float2 pair = unpack<T>(words[i]);
            sum_[h][2 * i] = fmaf(weight, pair.x, sum_[h][2 * i]);
            sum_[h][2 * i + 1] = fmaf(weight, pair.y, sum_[h][2 * i + 1]);
          }
        }
      }
    }
  }

  // Adds the streams of the warp for every head.
  __device__ __forceinline__ const float (&reduce())[kHeads][8] {
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
#pragma unroll
      for (int d = Lanes::kRowLanes; d < 32; d *= 2) {
#pragma unroll
        for (int i = 0; i < 8; ++i) sum_[h][i] += __shfl_xor_sync(kFullWarp, sum_[h][i], d);
      }
    }
    return sum_;
  }

  __device__ __forceinline__ bool writes(int lane) const {
    return lane < Lanes::kRowLanes && active_;
  }
  __device__ __forceinline__ int element() const {
    return element_;
  }

 private:
  int stream_;
  int element_;
  bool active_;
  float sum_[kHeads][8] = {};
};

// Groups that a block serves.
template <int kWarps>
inline constexpr int kSharedRows = kWarps == 1 ? 4 : 1;

// Grid: KV heads / kSharedRows, parts, queries of the pass.
template <class T, int kHeadDim, int kWarps>
__global__ void __launch_bounds__(32 * kWarps * kSharedRows<kWarps>, kWarps == 8 ? 2 : 4)
    shared_kernel(const __grid_constant__ Args args) {
  constexpr int kBatch = kSharedBatch<kWarps>;
  constexpr int kHeads = GatherHeads<T, kHeadDim, kWarps>::kHeads;
  using Selection = SharedSelection<kWarps, kBatch>;
  constexpr int kRows = kSharedRows<kWarps>;
  __shared__ typename RowGroup<kWarps>::Scratch scratch[kRows];
  __shared__ float sums[kRows][kWarps][kHeadDim];
  __shared__ bool last_part[kRows];
  extern __shared__ __align__(16) char selection_shared[];

  const int slot = static_cast<int>(threadIdx.x) / RowGroup<kWarps>::kThreads;
  RowGroup<kWarps> group(scratch[slot]);
  const auto q = static_cast<int32_t>(blockIdx.z);
  const auto part = static_cast<int32_t>(blockIdx.y);
  const int32_t query = args.first_query + q;
  GroupRow row;
  row.kv_head = static_cast<int32_t>(blockIdx.x) * kRows + slot;
  row.heads = args.group;
  row.head = row.kv_head * args.group;
  row.row_tiles = args.row_tiles;
  row.sequence = sequence_of(args, query);
  FaultCode fault;
  const PassSequence sequence = pass_sequence(args, row.sequence, &fault);
  row.budget = budget_of(args, row.sequence);
  row.keys = sequence.visible(q - sequence.slot);
  row.tiles = score_tiles(row.keys);
  const int32_t most = shared_entries(row.budget, row.heads, row.keys);
  const int32_t parts = shared_part_count(most);
  const int64_t index = int64_t{q} * args.p.num_q_heads + row.head;
  row.stats = args.stats + index * args.row_tiles;
  row.weights = args.weights + index * args.row_tiles * kScoreTile;
  const SequenceDraws& draws = args.p.draws[row.sequence];
  row.draws = {draws.key, draws.question, args.p.layer, static_cast<uint32_t>(row.head),
               static_cast<uint32_t>(row.keys - 1)};
  const bool last_block =
      blockIdx.x == gridDim.x - 1 && blockIdx.y == gridDim.y - 1 && blockIdx.z == gridDim.z - 1;
  // As in value_kernel.
  if (args.ready == nullptr || last_block) wait_for_predecessor();
  if (last_block && threadIdx.x == 0) *args.next_piece = 0;

  if (row.kv_head >= args.p.num_kv_heads || part >= parts) return;
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
  Selection selection(args, row, group,
                      selection_shared + slot * Selection::shared_bytes(args.row_tiles, row.heads));
  const bool finite = isfinite(selection.total());
  const int32_t begin = part * shared_part_entries(most);
  const int32_t behind = part == parts - 1 ? selection.count() : begin + shared_part_entries(most);
  const int32_t end = finite ? min(selection.count(), behind) : 0;
  float* const partial = args.partial + index * args.parts * kHeadDim;
  // The rows of a batch are read once for four heads. Where a part has one batch, it is chosen once for all
  // heads.
#pragma unroll 1
  for (int32_t first = 0; first < row.heads; first += kHeads) {
    GatherHeads<T, kHeadDim, kWarps> gather(group.warp(), group.lane());
#pragma unroll 1
    for (int32_t low = begin; low < end; low += kBatch) {
      const int32_t high = min(end, low + kBatch);
      const bool chosen = first > 0 && end - begin <= kBatch;
      const auto& batch = chosen ? selection.batch() : selection.fill(low, high);
      group.sync();
      gather.add(args.p.value_pages, batch, first, row.heads);
      group.sync();
    }
    const auto& sum = gather.reduce();
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      if (first + h == row.heads) break;
      if (gather.writes(group.lane())) {
#pragma unroll
        for (int i = 0; i < 8; ++i) sums[slot][group.warp()][gather.element() + i] = sum[h][i];
      }
      group.sync();
      T* const head_out = out + (first + h) * kHeadDim;
      float* const head_partial = partial + (int64_t{first + h} * args.parts + part) * kHeadDim;
#pragma unroll 1
      for (int i = group.thread(); i < kHeadDim; i += group.kThreads) {
        float x = 0;
#pragma unroll
        for (int w = 0; w < kWarps; ++w) x += sums[slot][w][i];
        if (parts > 1) {
          head_partial[i] = x;
        } else {
          head_out[i] = static_cast<T>(finite ? x : NAN);
        }
      }
      group.sync();
    }
  }
  if (part == 0 && group.thread() == 0 && args.p.rows_read != nullptr) {
    atomicAdd(reinterpret_cast<unsigned long long*>(&args.p.rows_read[row.sequence]),
              static_cast<unsigned long long>(finite ? selection.count() : 0));
  }
  if (args.ready != nullptr && group.thread() == 0 && atomicAdd(&args.consumed[pair], 1) == parts - 1) {
    args.consumed[pair] = 0;
    args.ready[pair] = 0;
  }
  if (parts == 1) return;
  __threadfence();
  group.sync();
  if (group.thread() == 0) last_part[slot] = atomicAdd(&args.arrivals[index], 1) == parts - 1;
  group.sync();
  if (!last_part[slot]) return;
  __threadfence();
  if (group.thread() == 0) args.arrivals[index] = 0;
#pragma unroll 1
  for (int i = group.thread(); i < row.heads * kHeadDim; i += group.kThreads) {
    float x = 0;
    for (int k = 0; k < parts; ++k) {
      x += __ldcg(&partial[(int64_t{i / kHeadDim} * args.parts + k) * kHeadDim + i % kHeadDim]);
    }
    out[i] = static_cast<T>(finite ? x : NAN);
  }
}

template <class T, int kHeadDim, int kWarps>
ValueKernel make_shared_kernel() {
  return {.function = shared_kernel<T, kHeadDim, kWarps>,
          .threads = 32 * kWarps * kSharedRows<kWarps>,
          .rows = kSharedRows<kWarps>,
          .groups = true,
          .row_bytes = SharedSelection<kWarps, kSharedBatch<kWarps>>::shared_bytes};
}

template <class T>
ValueKernel shared_kernel_of(int32_t head_dim, int32_t row_warps) {
  switch (head_dim) {
    case 32:
      return row_warps == 1 ? make_shared_kernel<T, 32, 1>() : make_shared_kernel<T, 32, 8>();
    case 64:
      return row_warps == 1 ? make_shared_kernel<T, 64, 1>() : make_shared_kernel<T, 64, 8>();
    case 96:
      return row_warps == 1 ? make_shared_kernel<T, 96, 1>() : make_shared_kernel<T, 96, 8>();
    case 128:
      return row_warps == 1 ? make_shared_kernel<T, 128, 1>() : make_shared_kernel<T, 128, 8>();
    case 256:
      return row_warps == 1 ? make_shared_kernel<T, 256, 1>() : make_shared_kernel<T, 256, 8>();
    default:
      return {};
  }
}

}  // namespace allot::kernels::cuda
