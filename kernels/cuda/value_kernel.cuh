// Second kernel of a launch: draws the samples of every row from the weights the score kernel left, reads the
// value rows drawn and adds them up. A row is the work of one warp where budgets are small, else of a block;
// rows with many entries are shared by several blocks, the last of which adds the parts in order.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/args.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/row_group.cuh"
#include "kernels/cuda/sequences.cuh"
#include "kernels/cuda/value_row.cuh"

namespace allot::kernels::cuda {

// Rows of a block, threads of a row and entries of a batch follow from the warps that share a row.
template <int kWarps>
struct ValueShape {
  static constexpr int kRows = kWarps == 1 ? 4 : 1;
  static constexpr int kThreads = 32 * kWarps * kRows;
  static constexpr int kBatch = kWarps == 1 ? kWarpRowBudget : kBatchEntries;
};

// Adds eight elements of a value row, times its weight, to the first sums.
template <class T, int kSums>
__device__ __forceinline__ void add_weighted(uint4 value, float weight, float (&sum)[kSums]) {
  const uint32_t words[4] = {value.x, value.y, value.z, value.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 pair = unpack<T>(words[i]);
    sum[2 * i] = fmaf(weight, pair.x, sum[2 * i]);
    sum[2 * i + 1] = fmaf(weight, pair.y, sum[2 * i + 1]);
  }
}

// Writes x(0) to x(7) to eight elements, aligned to 16 bytes.
template <class T, class X>
__device__ __forceinline__ void write_eight(T* elements, X x) {
  *reinterpret_cast<uint4*>(elements) = {pack<T>(x(0), x(1)), pack<T>(x(2), x(3)), pack<T>(x(4), x(5)),
                                         pack<T>(x(6), x(7))};
}

// Adds weighted value rows. Lanes hold 8 consecutive elements; as many value rows as fit are read by a warp
// at once, and kUnroll of them are in flight for every lane.
template <class T, int kHeadDim, int kWarps>
class Gather {
 public:
  static constexpr int kRowLanes = static_cast<int>(std::bit_ceil(kHeadDim / 8u));
  static constexpr int kStreams = kWarps * (32 / kRowLanes);
  static constexpr int kUnroll = 8;

  __device__ __forceinline__ explicit Gather(int warp, int lane)
      : stream_(warp * (32 / kRowLanes) + lane / kRowLanes),
        element_(lane % kRowLanes * 8),
        active_(lane % kRowLanes * 8 < kHeadDim) {}

  __device__ __forceinline__ void add(const void* values, const Entry* entries, int32_t count) {
#pragma unroll 1
    for (int32_t first = stream_; first < count; first += kStreams * kUnroll) {
      Entry entry[kUnroll];
      uint4 value[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const int32_t e = first + u * kStreams;
        entry[u] = e < count ? entries[e] : Entry{0, 0};
        value[u] = {0, 0, 0, 0};
        if (entry[u].weight != 0 && active_) {
          value[u] = load_streamed_vector(static_cast<const T*>(values) + int64_t{entry[u].row} * kHeadDim +
                                          element_);
        }
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) add_weighted<T>(value[u], entry[u].weight, sum_);
    }
  }

  // Adds the streams of the warp; every lane gets the sum of its elements.
  __device__ __forceinline__ const float (&reduce())[8] {
#pragma unroll
    for (int d = kRowLanes; d < 32; d *= 2) {
#pragma unroll
      for (int i = 0; i < 8; ++i) sum_[i] += __shfl_xor_sync(kFullWarp, sum_[i], d);
    }
    return sum_;
  }

  __device__ __forceinline__ bool writes(int lane) const {
    return lane < kRowLanes && active_;
  }
  __device__ __forceinline__ int element() const {
    return element_;
  }

 private:
  int stream_;
  int element_;
  bool active_;
  float sum_[8] = {};
};

// The same for split keys: every weight is corrected by what the low plane of its key adds to the score
// (kernels/attention.h), and the corrected weights are added up, too.
template <class T, int kHeadDim, int kWarps>
class CorrectedGather {
 public:
  static constexpr int kRowLanes = kHeadDim / 8;
  static constexpr int kStreams = kWarps * (32 / kRowLanes);
  // A warp alone has few rows to read, and registers for more would be spilled.
  static constexpr int kUnroll = kWarps == 1 ? 4 : 8;
  static constexpr int kSums = 9;  // of the eight elements of a lane, and of the weights

  // `query` is the row's among all [num_queries, num_q_heads].
  __device__ __forceinline__ CorrectedGather(const Args& args, int64_t query, int warp, int lane)
      : split_(args.p.split),
        stream_(warp * (32 / kRowLanes) + lane / kRowLanes),
        element_(lane % kRowLanes * 8),
        high_(*reinterpret_cast<const uint2*>(split_.query + 2 * query * kHeadDim + element_)),
        low_(*reinterpret_cast<const uint2*>(split_.query + (2 * query + 1) * kHeadDim + element_)),
        // A product of fixed-point numbers times this and the key's unit is a score, in units of log2.
        unit_(split_.query_units[query] * args.p.scale * kLog2E / 65536) {}

  // All lanes of the warp call it.
  __device__ __forceinline__ void add(const void* values, const Entry* entries, int32_t count) {
#pragma unroll 1
    for (int32_t first = stream_; __any_sync(kFullWarp, first < count); first += kStreams * kUnroll) {
      Entry entry[kUnroll];
      uint4 value[kUnroll];
      uint2 key[kUnroll];
      float unit[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const int32_t e = first + u * kStreams;
        entry[u] = e < count ? entries[e] : Entry{0, 0};
        value[u] = {0, 0, 0, 0};
        key[u] = {0, 0};
        if (entry[u].weight != 0) {
          const int64_t first_element = int64_t{entry[u].row} * kHeadDim + element_;
          key[u] = *reinterpret_cast<const uint2*>(split_.low + first_element);
          value[u] = load_streamed_vector(static_cast<const T*>(values) + first_element);
        }
      }
      // The score kernel has brought them to L2: behind what comes from memory.
#pragma unroll
      for (int u = 0; u < kUnroll; ++u)
        unit[u] = entry[u].weight != 0 ? key_unit<kHeadDim>(split_, entry[u].row) : 0;
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        int32_t by_high = add_products_of_bytes(high_.x, key[u].x, 0),
                by_low = add_products_of_bytes(low_.x, key[u].x, 0);
        by_high = add_products_of_bytes(high_.y, key[u].y, by_high);
        by_low = add_products_of_bytes(low_.y, key[u].y, by_low);
        int32_t product = 256 * by_high + by_low;
#pragma unroll
        for (int d = 1; d < kRowLanes; d *= 2) product += __shfl_xor_sync(kFullWarp, product, d);
        const float weight = entry[u].weight * fast_exp2(static_cast<float>(product) * (unit[u] * unit_));
        add_weighted<T>(value[u], weight, sum_);
        sum_[8] += weight;
      }
    }
  }

  // Adds the streams of the warp; every lane gets the sums of its elements and that of the weights.
  __device__ __forceinline__ const float (&reduce())[kSums] {
#pragma unroll
    for (int d = kRowLanes; d < 32; d *= 2) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) sum_[i] += __shfl_xor_sync(kFullWarp, sum_[i], d);
    }
    return sum_;
  }

  __device__ __forceinline__ bool writes(int lane) const {
    return lane < kRowLanes;
  }
  __device__ __forceinline__ int element() const {
    return element_;
  }

 private:
  const SplitKeys& split_;
  int stream_;
  int element_;
  uint2 high_;  // planes of the query's eight elements
  uint2 low_;
  float unit_;
  float sum_[kSums] = {};
};

// What a value kernel adds rows with.
template <class T, int kHeadDim, int kWarps, bool kCorrected>
using GatherOf =
    std::conditional_t<kCorrected, CorrectedGather<T, kHeadDim, kWarps>, Gather<T, kHeadDim, kWarps>>;

// Waits until a counter reaches a value, and for what was written before it was counted.
__device__ __forceinline__ void await(const int32_t* counter, int32_t value) {
  while (load_acquired(counter) < value) {
#ifdef __CUDACC__
    __nanosleep(20);
#endif
  }
}

// The value rows that the heads of a row's group have read for query `q` of the pass: a hash table.
__device__ __forceinline__ uint32_t* rows_of_group(const Args& args, const ValueRow& row, int32_t q) {
  return args.row_table + (int64_t{q} * args.p.num_kv_heads + row.kv_head) * args.row_slots;
}

// The value row that is read for an entry; kNoRow where it has no weight.
__device__ __forceinline__ uint32_t read_row(const Entry& entry) {
  return entry.weight != 0 ? entry.row : kNoRow;
}

// Counts the value rows that are not in the table yet, and enters them: row_read(e) for each of `count`, or
// kNoRow.
template <int kWarps, class RowRead>
__device__ __forceinline__ void count_new_rows(const Args& args, const ValueRow& row, uint32_t* table,
                                               int32_t count, RowRead row_read,
                                               const RowGroup<kWarps>& group) {
  const auto mask = static_cast<uint32_t>(args.row_slots - 1);
  int32_t found = 0;
#pragma unroll 1
  for (int32_t e = group.thread(); e < count; e += group.kThreads) {
    const uint32_t read = row_read(e);
    if (read == kNoRow) continue;
    uint32_t slot = read * 2654435761u;  // Fibonacci hashing: neighbours lie far apart
#pragma unroll 1
    for (;; ++slot) {
      const uint32_t before = atomicCAS(&table[slot & mask], kNoRow, read);
      found += before == kNoRow;
      if (before == kNoRow || before == read) break;
    }
  }
  if (found > 0) {
    atomicAdd(reinterpret_cast<unsigned long long*>(&args.p.rows_read[row.sequence]),
              static_cast<unsigned long long>(found));
  }
}

// Floats that a part of a row leaves: its sums.
template <int kHeadDim, bool kCorrected>
inline constexpr int kPartialSums = kHeadDim + (kCorrected ? kWeightSumRoom : 0);

// Grid: num_q_heads / kRows, parts, queries of the pass, in the order in which the score
// kernel completes rows.
//
// Selection is an estimator's: kDense (it serves the sequences without samples), kDraws (it reads row.draws),
// Known, which is made before the row's scores are there, for the entry of a part that Known::place() gives
// the thread, shared_bytes() of dynamic shared memory for a row, total() of the row's weights, and fill(),
// which writes the entries of a batch, the same whenever it is called. kCorrected where keys are split and
// have a low plane.
template <class Selection, class T, int kHeadDim, int kWarps, bool kCorrected>
__global__ void __launch_bounds__(ValueShape<kWarps>::kThreads, kWarps == 1 ? 4 : 2)
    value_kernel(const __grid_constant__ Args args) {
  using Shape = ValueShape<kWarps>;
  __shared__ typename RowGroup<kWarps>::Scratch scratch[Shape::kRows];
  __shared__ Entry entries[Shape::kRows][Shape::kBatch];
  constexpr int kSums =
      kHeadDim + kCorrected;  // of a row: its elements and, behind them, that of the weights
  __shared__ float sums[kWarps][kSums];
  __shared__ bool last_part;
  ALLOT_DYNAMIC_SHARED(16, selection_shared);

  const int slot = static_cast<int>(threadIdx.x) / RowGroup<kWarps>::kThreads;
  RowGroup<kWarps> group(scratch[slot]);
  const auto q = static_cast<int32_t>(blockIdx.z);
  const auto part = static_cast<int32_t>(blockIdx.y);
  const int32_t query = args.first_query + q;
  ValueRow row;
  row.head = static_cast<int32_t>(blockIdx.x) * Shape::kRows + slot;
  row.sequence = sequence_of(args, query);
  FaultCode fault;
  const PassSequence sequence = pass_sequence(args, row.sequence, &fault);
  row.budget = budget_of(args, row.sequence);
  row.kv_head = row.head / args.group;
  row.keys = sequence.visible(q - sequence.slot);
  row.tiles = score_tiles(row.keys);
  const int32_t count = row.entries();
  const int32_t parts = part_count(count);
  const int64_t index = int64_t{q} * args.p.num_q_heads + row.head;
  row.stats = args.stats + index * args.row_tiles;
  row.weights = args.weights + index * args.row_tiles * kScoreTile;
  if constexpr (Selection::kDraws) {
    const SequenceDraws& draws = args.p.draws[row.sequence];
    row.draws = {draws.key, draws.question, args.p.layer, static_cast<uint32_t>(args.p.first_head + row.head),
                 static_cast<uint32_t>(row.keys - 1)};
  }
  const int32_t size = part_entries(count);
  using Known = typename Selection::Known;
  // Over split keys, whose rows take all registers, searching together is slower (docs/internals/kernels.md).
  constexpr bool kOneByOne = kCorrected;
  const Known known(args, row,
                    part * size + (kOneByOne ? group.thread() : Known::place(size, group.thread())));
  const bool last_block =
      blockIdx.x == gridDim.x - 1 && blockIdx.y == gridDim.y - 1 && blockIdx.z == gridDim.z - 1;
  const bool announced = row.sequence < args.announced;
  // The last block always waits, because the end of this kernel must mean that the score kernel
  // has ended, too.
  if (!announced || last_block) wait_for_predecessor();

  if (row.head >= args.p.num_q_heads || part >= parts) return;
  T* const out = static_cast<T*>(args.p.out) + (int64_t{query} * args.p.num_q_heads + row.head) * kHeadDim;
  const auto fill_out = [&](float x) {
    if (part != 0) return;
#pragma unroll 1
    for (int i = group.thread(); i < kHeadDim; i += group.kThreads) out[i] = static_cast<T>(x);
  };
  if (fault != kFaultNone) return fill_out(NAN);
  if (row.budget == 0 && !Selection::kDense) return fill_out(0);
  // A launch with dense sequences among sampled ones has a kernel for each.
  if ((row.budget == kDenseBudget) != Selection::kDense) return;
  if (Selection::kDense && is_decoded_exactly(args, row.sequence, sequence.queries)) return;

  const int32_t pair = row.sequence * args.p.num_kv_heads + row.kv_head;
  if (announced) {
    if (group.thread() == 0) await(&args.ready[pair], row.tiles);
    group.sync();
  }
  Selection selection(args, row, group, selection_shared + slot * Selection::shared_bytes(args.row_tiles),
                      known);
  const double total = selection.total();
  const int32_t end = isfinite(total) ? min(count, (part + 1) * size) : 0;
  const auto read = [&](int32_t e) { return read_row(entries[slot][e]); };
  // Where eight warps share a row, rows are counted before the sum and apart from it, with entries chosen
  // twice; where a warp has a row, within the sum. Either way around costs launches that count nothing 2 %.
  constexpr bool kCountsApart = !Selection::kDense && kWarps > 1;
  constexpr bool kCountsWithin = !Selection::kDense && kWarps == 1;
  if constexpr (kCountsApart) {
    if (args.row_table != nullptr) {
      uint32_t* const table = rows_of_group(args, row, q);
#pragma unroll 1
      for (int32_t low = part * size; low < end; low += Shape::kBatch) {
        const Batch batch{.entries = entries[slot],
                          .low = low,
                          .high = min(end, low + Shape::kBatch),
                          .one_by_one = kOneByOne};
        selection.fill(batch);
        group.sync();
        count_new_rows(args, row, table, batch.high - low, read, group);
        group.sync();
      }
    }
  }
  using RowGather = GatherOf<T, kHeadDim, kWarps, kCorrected>;
  RowGather gather = [&] {
    if constexpr (kCorrected) {
      return RowGather(args, int64_t{query} * args.p.num_q_heads + row.head, group.warp(), group.lane());
    } else {
      return RowGather(group.warp(), group.lane());
    }
  }();
  // A multiprocessor with one row has time for it. Rows of corrected weights have low planes, too, of which
  // that would be one more access for each entry of a thread, and slower.
  const void* const asked =
      kWarps > 1 && !Selection::kDense && !kCorrected && args.few_rows ? args.p.value_pages : nullptr;
#pragma unroll 1
  for (int32_t low = part * size; low < end; low += Shape::kBatch) {
    const Batch batch{.entries = entries[slot],
                      .low = low,
                      .high = min(end, low + Shape::kBatch),
                      .asked = asked,
                      .row_bytes = kHeadDim * int32_t{sizeof(T)},
                      .one_by_one = kOneByOne};
    selection.fill(batch);
    group.sync();
    gather.add(args.p.value_pages, entries[slot], batch.high - low);
    if constexpr (kCountsWithin) {
      if (args.row_table != nullptr)
        count_new_rows(args, row, rows_of_group(args, row, q), batch.high - low, read, group);
    }
    group.sync();
  }
  if (parts == 1) discard_weights(args, row.weights, row.tiles, group);
  if (announced && group.thread() == 0 && atomicAdd(&args.consumed[pair], 1) == args.group * parts - 1) {
    args.consumed[pair] = 0;
    args.ready[pair] = 0;
  }
  // Scores are NaN for keys of a page outside the pool and for NaN in the cache.
  if (!isfinite(total)) return fill_out(NAN);

  const auto& sum = gather.reduce();
  if constexpr (kWarps == 1) {
    if (gather.writes(group.lane())) {
      const auto x = [&](int i) {
        if constexpr (kCorrected) return sum[i] / sum[8];
        return sum[i];
      };
      write_eight(out + gather.element(), x);
    }
  } else {
    if (gather.writes(group.lane())) {
#pragma unroll
      for (int i = 0; i < 8; ++i) sums[group.warp()][gather.element() + i] = sum[i];
      if constexpr (kCorrected) sums[group.warp()][kHeadDim] = sum[8];
    }
    __syncthreads();
    const int element = group.thread();
    // Element `e` of the row, or the sum of its weights.
    const auto of_warps = [&](int e) {
      float x = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) x += sums[w][e];
      return x;
    };
    const auto finished = [&](float x, const auto& sum_of) {
      if constexpr (kCorrected) return static_cast<T>(x / sum_of(kHeadDim));
      return static_cast<T>(x);
    };
    float x = 0;
    if (element < kSums) x = of_warps(element);
    if (parts == 1) {
      if (element < kHeadDim) out[element] = finished(x, of_warps);
      return;
    }
    float* const partial = args.partial + index * args.parts * kPartialSums<kHeadDim, kCorrected>;
    if (element < kSums) partial[part * kPartialSums<kHeadDim, kCorrected> + element] = x;
    __syncthreads();
    if (element == 0) last_part = arrives_last(&args.arrivals[index], parts);
    __syncthreads();
    if (!last_part || element >= kHeadDim) return;
    const auto of_parts = [&](int e) {
      float y = 0;
      for (int i = 0; i < parts; ++i) y += __ldcg(&partial[i * kPartialSums<kHeadDim, kCorrected> + e]);
      return y;
    };
    out[element] = finished(of_parts(element), of_parts);
  }
}

}  // namespace allot::kernels::cuda
