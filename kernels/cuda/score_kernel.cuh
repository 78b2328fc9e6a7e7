// First kernel of a launch: reads every visible key once and leaves, for every row, the weights of its keys
// and the statistics of its score tiles (S2ANTA paper, Algorithm 3 with the optional stash; the stash is half
// precision relative to the tile's maximum, 2 bytes a key and head against 2 * head_dim of the key itself).
//
// One warp multiplies kStageKeys keys at a time with the queries of a head group on the tensor cores: keys
// are the rows of the product, queries its columns. The order of the head dimension inside a product is free,
// so lanes read 16 contiguous bytes of a key where the plain fragment layout wants four times 4.
#pragma once

#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/sequences.cuh"
#include "kernels/cuda/stage_order.h"
#include "kernels/cuda/warp_ring.cuh"

namespace allot::kernels::cuda {

// Geometry of the score kernel for elements of 2 bytes.
template <int kHeadDim, int kColumnTiles>
struct ScoreShape {
  static constexpr int kStageBytes = kStageKeys * kHeadDim * 2;
  // 24 KiB a warp where the stage size divides it: eight warps fill an H100's shared memory, four an RTX
  // 4090's.
  static constexpr int kStages = 24 * 1024 / kStageBytes;
  static constexpr int kColumns = 8 * kColumnTiles;
  using Ring = WarpRing<kStageBytes, kStages>;
  static constexpr int kWarpBytes = Ring::kBytes;
};

// Dynamic shared memory of a block of `warps` warps for `batch` sequences.
template <class Shape>
__host__ __device__ constexpr int64_t score_shared_bytes(int warps, int64_t batch) {
  return int64_t{warps} * (Shape::kWarpBytes + Shape::Ring::kBarrierBytes) + 4 * (batch + 1) + 4 * 32;
}

// Exclusive prefix sum of a count a sequence over the whole block, into a shared array of batch + 1.
template <class Count>
__device__ __forceinline__ void prefix_sum(int32_t batch, int32_t* start, int32_t* scratch, Count count) {
  const int threads = static_cast<int>(blockDim.x);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int each = (batch + threads - 1) / threads;
  const int begin = min(batch, thread * each);
  const int end = min(batch, begin + each);
  int32_t sum = 0;
#pragma unroll 1
  for (int b = begin; b < end; ++b) {
    start[b] = count(b);
    sum += start[b];
  }
  int32_t inclusive = sum;
#pragma unroll 1
  for (int d = 1; d < 32; d *= 2) {
    const int32_t below = __shfl_up_sync(kFullWarp, inclusive, d);
    if (lane >= d) inclusive += below;
  }
  if (lane == 31) scratch[thread / 32] = inclusive;
  __syncthreads();
  int32_t before = inclusive - sum;
#pragma unroll 1
  for (int w = 0; w < thread / 32; ++w) before += scratch[w];
#pragma unroll 1
  for (int b = begin; b < end; ++b) {
    const int32_t own = start[b];
    start[b] = before;
    before += own;
  }
  if (thread == threads - 1) start[batch] = before;  // the last thread's range ends the batch or is empty
  __syncthreads();
}

// Largest b with start[b] <= x; start rises, start[0] = 0 <= x < start[count].
__device__ __forceinline__ int32_t last_at_or_below(const int32_t* start, int32_t count, int32_t x) {
  int32_t low = 0;
  int32_t high = count;
  while (high - low > 1) {
    const int32_t middle = (low + high) / 2;
    if (start[middle] <= x) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// A warp's share of work: consecutive score tiles of one sequence, KV head and block of queries.
struct Segment {
  int32_t sequence;
  int32_t kv_head;
  int32_t first_query;  // of the pass
  int32_t queries;
  int32_t first_tile;
  int32_t last_tile;  // exclusive
};

template <class T, int kHeadDim, int kColumnTiles, bool kDecode>
class SegmentScorer {
 public:
  using Shape = ScoreShape<kHeadDim, kColumnTiles>;
  using Ring = typename Shape::Ring;
  static constexpr int kChunks = kHeadDim / 32;  // 64 bytes of a key: two steps of the product

  __device__ __forceinline__ SegmentScorer(const Args& args, Ring& ring, int lane)
      : args_(args), ring_(ring), lane_(lane), row_(lane / 4), quad_(lane % 4) {}

  __device__ __forceinline__ void run(const Segment& segment, const PassSequence& sequence) {
    load_queries(segment, sequence);
    const int32_t last_visible = sequence.visible(segment.first_query + segment.queries - 1);
    const int32_t first_key = segment.first_tile * kScoreTile;
    const int32_t keys = min(segment.last_tile * kScoreTile, last_visible) - first_key;
    const int32_t stages = (keys + kStageKeys - 1) / kStageKeys;
    page_fault_ = false;

    // Lane i knows the rows of stages window + i and window + 32 + i, so that a page is looked up long before
    // its keys are wanted.
    int32_t window = 0;
    uint32_t rows = 0;
    uint32_t next_rows = 0;
#pragma unroll 1
    for (int i = 0; i < 2; ++i) {
      rows = next_rows;
      next_rows = stage_row(segment, 32 * i, stages);
    }
    int32_t filled = 0;
    const auto fill_next = [&] {
      if (filled < stages) {
        const uint32_t row = __shfl_sync(kFullWarp, filled - window < 32 ? rows : next_rows, filled % 32);
        ring_.fill(static_cast<const char*>(args_.p.key_pages) + int64_t{row} * (kHeadDim * 2));
        ++filled;
      } else {
        ring_.skip_fill();
      }
    };
#pragma unroll 1
    for (int i = 0; i < Shape::kStages; ++i) fill_next();

    int32_t stage = 0;
#pragma unroll 1
    for (int32_t tile = segment.first_tile; tile < segment.last_tile; ++tile) {
      if (filled - window >= 32) {
        window += 32;
        rows = next_rows;
        next_rows = stage_row(segment, window + 32, stages);
      }
      float scores[kColumnTiles][4][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (stage < stages) {
          score_stage(ring_.wait(), i, scores);
          ring_.advance();
          fill_next();
          ++stage;
        } else {
#pragma unroll
          for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
            for (int k = 0; k < 4; ++k) scores[n][i][k] = 0;
          }
        }
      }
      finish_tile(segment, sequence, tile, scores);
    }
    if (__any_sync(kFullWarp, page_fault_)) poison(segment, sequence);
  }

 private:
  // First row (of kHeadDim elements, counted from key_pages) of stage `first` + lane of the segment. One
  // copy: it is long, and cold instructions cost a short launch more than the call.
  __device__ __forceinline__ uint32_t stage_row(const Segment& segment, int32_t first, int32_t stages) {
    const int32_t stage = first + lane_;
    if (stage >= stages) return 0;
    const int32_t key = segment.first_tile * kScoreTile + stage * kStageKeys;
    const int32_t entry = key / args_.p.page_size;
    int32_t page = args_.p.page_table[int64_t{segment.sequence} * args_.p.max_pages + entry];
    if (page < 0 || page >= args_.p.num_pages) {
      record_fault(args_, kFaultPage, segment.sequence, page, args_.p.num_pages);
      page_fault_ = true;
      page = 0;
    }
    return (static_cast<uint32_t>(page) * args_.p.num_kv_heads + segment.kv_head) * args_.p.page_size +
           (key - entry * args_.p.page_size);
  }

  // Query (0-based in the segment) and head of a column.
  __device__ __forceinline__ int column_query(int column) const {
    return kDecode ? column >= args_.group : column / args_.group;
  }
  __device__ __forceinline__ int column_head(const Segment& segment, int column) const {
    return segment.kv_head * args_.group + (kDecode ? column : column % args_.group);
  }

  __device__ __forceinline__ void load_queries(const Segment& segment, const PassSequence& sequence) {
    const int64_t first_token = int64_t{args_.first_query} + sequence.slot + segment.first_query;
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
      const int column = 8 * n + row_;
      const int query = column_query(column);
      const bool used = query < segment.queries;
      const T* source = static_cast<const T*>(args_.p.query) + (first_token + query) * args_.p.query_stride +
                        column_head(segment, column) * kHeadDim + quad_ * 8;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const uint4 q = used ? *reinterpret_cast<const uint4*>(source + c * 32) : uint4{0, 0, 0, 0};
        query_[n][2 * c][0] = q.x;
        query_[n][2 * c][1] = q.y;
        query_[n][2 * c + 1][0] = q.z;
        query_[n][2 * c + 1][1] = q.w;
      }
    }
  }

  // Products of the stage's keys 2 row_ and 2 row_ + 1 with this lane's columns.
  __device__ __forceinline__ void score_stage(uint32_t stage, int i, float (&scores)[kColumnTiles][4][4]) {
    const uint32_t low = stage + (2 * row_) * (kHeadDim * 2) + quad_ * 16;
    const uint32_t high = low + kHeadDim * 2;
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
      for (int k = 0; k < 4; ++k) scores[n][i][k] = 0;
    }
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const uint4 x = load_shared_vector(low + c * 64);
      const uint4 y = load_shared_vector(high + c * 64);
      const uint32_t even[4] = {x.x, y.x, x.y, y.y};
      const uint32_t odd[4] = {x.z, y.z, x.w, y.w};
#pragma unroll
      for (int n = 0; n < kColumnTiles; ++n) {
        multiply_accumulate<T>(scores[n][i], even, query_[n][2 * c]);
        multiply_accumulate<T>(scores[n][i], odd, query_[n][2 * c + 1]);
      }
    }
  }

  __device__ __forceinline__ int64_t row_tile(const Segment& segment, const PassSequence& sequence,
                                              int column, int32_t tile) const {
    const int32_t slot = sequence.slot + segment.first_query + column_query(column);
    return (int64_t{slot} * args_.p.num_q_heads + column_head(segment, column)) * args_.row_tiles + tile;
  }

  // Turns a tile's products into weights. This lane has, in stage i, keys 16 i + 2 row_ + {0, 1} of columns 2
  // quad_ and 2 quad_ + 1 of each column tile.
  __device__ __forceinline__ void finish_tile(const Segment& segment, const PassSequence& sequence,
                                              int32_t tile, float (&scores)[kColumnTiles][4][4]) {
    const float scale = args_.p.scale * 1.4426950408889634f;  // log2(e)
    const int32_t first_key = tile * kScoreTile;
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        const int column = 8 * n + 2 * quad_ + side;
        const int query = column_query(column);
        const bool used = query < segment.queries;
        float largest = -INFINITY;
        const int32_t visible = sequence.visible(segment.first_query + query) - first_key;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int key = 16 * i + 2 * row_;
          if (key >= visible) scores[n][i][side] = -INFINITY;
          if (key + 1 >= visible) scores[n][i][2 + side] = -INFINITY;
          largest = fmaxf(largest, fmaxf(scores[n][i][side], scores[n][i][2 + side]));
        }
#pragma unroll
        for (int d = 4; d < 32; d *= 2) largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, d));
        // A tile this query does not see keeps weights of zero.
        const float shift = largest == -INFINITY ? 0.0f : largest * scale;
        uint32_t packed[4];
        float sum = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const __half2 pair = __floats2half2_rn(fast_exp2(fmaf(scores[n][i][side], scale, -shift)),
                                                 fast_exp2(fmaf(scores[n][i][2 + side], scale, -shift)));
          const float2 rounded = __half22float2(pair);
          sum += rounded.x + rounded.y;
          packed[i] = *reinterpret_cast<const uint32_t*>(&pair);
        }
#pragma unroll
        for (int d = 4; d < 32; d *= 2) sum += __shfl_xor_sync(kFullWarp, sum, d);
        if (used) {
          const int64_t index = row_tile(segment, sequence, column, tile);
          reinterpret_cast<uint4*>(args_.weights + index * kScoreTile)[row_] = {packed[0], packed[1],
                                                                                packed[2], packed[3]};
          if (row_ == 0) args_.stats[index] = {largest * scale, sum};
        }
      }
    }
  }

  // A page outside the pool: its keys are unknown, so every row of the segment becomes NaN.
  __device__ __forceinline__ void poison(const Segment& segment, const PassSequence& sequence) {
    for (int column = lane_; column < segment.queries * args_.group; column += 32) {
      args_.stats[row_tile(segment, sequence, column, segment.first_tile)] = {NAN, NAN};
    }
  }

  const Args& args_;
  Ring& ring_;
  const int lane_;
  const int row_;   // of the product's fragments
  const int quad_;  // lane in the group of four that shares a row
  bool page_fault_ = false;
  uint32_t query_[kColumnTiles][kHeadDim / 16][2];
};

__device__ __forceinline__ void report_fault(const Args& args, FaultCode fault, int32_t b,
                                             const PassSequence& s) {
  if (fault == kFaultNone) return;
  const bool of_queries = fault == kFaultQueries;
  const bool of_length = fault == kFaultLength;
  const int32_t value = of_queries ? s.queries : of_length ? s.length : budget_of(args, b);
  const int32_t limit = of_queries              ? args.max_queries
                        : of_length             ? args.max_length
                        : fault == kFaultBudget ? args.max_budget
                                                : tile_count(s.length, args.p.tile);
  record_fault(args, fault, b, value, limit);
}

// Grid: one block a multiprocessor, each warp on its own. Decode (one query a sequence) gives every warp an
// equal run of the batch's score tiles, across sequences and KV heads; prefill deals whole blocks of queries,
// which are many.
template <class T, int kHeadDim, int kColumnTiles, bool kDecode>
__global__ void __launch_bounds__(256, 1) score_kernel(const __grid_constant__ Args args) {
  using Shape = ScoreShape<kHeadDim, kColumnTiles>;
  extern __shared__ __align__(128) char shared[];
  let_dependents_start();
  const int warps = static_cast<int>(blockDim.x) / 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto batch = static_cast<int32_t>(args.p.batch);
  char* const barriers = shared + warps * Shape::kWarpBytes;
  auto* const item_start = reinterpret_cast<int32_t*>(barriers + warps * Shape::Ring::kBarrierBytes);
  int32_t* const scratch = item_start + batch + 1;
  typename Shape::Ring ring(shared + warp * Shape::kWarpBytes,
                            reinterpret_cast<uint64_t*>(barriers + warp * Shape::Ring::kBarrierBytes), lane);

  // Items: score tiles in decode, blocks of queries in prefill, of one KV head.
  const int32_t block_queries = Shape::kColumns / args.group;
  prefix_sum(batch, item_start, scratch, [&](int32_t b) {
    FaultCode fault;
    const PassSequence s = pass_sequence(args, b, &fault);
    if (blockIdx.x == 0) report_fault(args, fault, b, s);
    if (kDecode) return s.count * score_tiles(s.length);
    return (s.count + block_queries - 1) / block_queries;
  });
  if (args.parts > 1) {
    const int32_t rows = args.pass_queries * args.p.num_q_heads;
    for (auto i = static_cast<int32_t>(blockIdx.x * blockDim.x + threadIdx.x); i < rows;
         i += static_cast<int32_t>(gridDim.x * blockDim.x)) {
      args.arrivals[i] = 0;
    }
  }

  SegmentScorer<T, kHeadDim, kColumnTiles, kDecode> scorer(args, ring, lane);
  const int32_t kv_heads = args.p.num_kv_heads;
  const int32_t items = item_start[batch] * kv_heads;
  const auto workers = static_cast<int32_t>(gridDim.x) * warps;
  // Neighbouring shares go to different multiprocessors, so that a short batch occupies all of them.
  const auto worker = warp * static_cast<int32_t>(gridDim.x) + static_cast<int32_t>(blockIdx.x);
  const int32_t each = items / workers;
  const int32_t more = items - each * workers;
  int32_t item = kDecode ? worker * each + min(worker, more) : worker;
  const int32_t end = kDecode ? item + each + (worker < more ? 1 : 0) : items;
#pragma unroll 1
  while (item < end) {
    const int32_t unit = item / kv_heads;
    const int32_t b = last_at_or_below(item_start, batch, unit);
    FaultCode ignored;
    const PassSequence sequence = pass_sequence(args, b, &ignored);
    Segment segment;
    segment.sequence = b;
    if constexpr (kDecode) {
      const int32_t tiles = item_start[b + 1] - item_start[b];
      const int32_t offset = item - item_start[b] * kv_heads;
      segment.kv_head = offset / tiles;
      segment.first_query = 0;
      segment.queries = 1;
      segment.first_tile = offset - segment.kv_head * tiles;
      segment.last_tile = min(tiles, segment.first_tile + end - item);
      item += segment.last_tile - segment.first_tile;
    } else {
      segment.kv_head = item - unit * kv_heads;
      segment.first_query = (unit - item_start[b]) * block_queries;
      segment.queries = min(block_queries, sequence.count - segment.first_query);
      segment.first_tile = 0;
      segment.last_tile = score_tiles(sequence.visible(segment.first_query + segment.queries - 1));
      item += workers;
    }
    scorer.run(segment, sequence);
  }
}

}  // namespace allot::kernels::cuda
