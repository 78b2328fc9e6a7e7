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
  return int64_t{warps} * (Shape::kWarpBytes + Shape::Ring::kBarrierBytes) + 2 * 4 * (batch + 1) + 4 * 33;
}

// Exclusive prefix sums of two counts a sequence, over the whole block, into shared arrays of batch + 1.
// `counts(b)` is called once a sequence and returns both.
template <class Counts>
__device__ void prefix_sums(int32_t batch, int32_t* first, int32_t* second, int32_t* scratch, Counts counts) {
  const int threads = static_cast<int>(blockDim.x);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int each = (batch + threads - 1) / threads;
  const int begin = min(batch, thread * each);
  const int end = min(batch, begin + each);
  int32_t sums[2] = {0, 0};
  for (int b = begin; b < end; ++b) {
    const int2 c = counts(b);
    first[b] = c.x;
    second[b] = c.y;
    sums[0] += c.x;
    sums[1] += c.y;
  }
  int32_t* const outputs[2] = {first, second};
  for (int k = 0; k < 2; ++k) {
    int32_t inclusive = sums[k];
    for (int d = 1; d < 32; d *= 2) {
      const int32_t below = __shfl_up_sync(kFullWarp, inclusive, d);
      if (lane >= d) inclusive += below;
    }
    if (lane == 31) scratch[thread / 32] = inclusive;
    __syncthreads();
    int32_t before = inclusive - sums[k];
    for (int w = 0; w < thread / 32; ++w) before += scratch[w];
    for (int b = begin; b < end; ++b) {
      const int32_t count = outputs[k][b];
      outputs[k][b] = before;
      before += count;
    }
    if (thread == threads - 1)
      outputs[k][batch] = before;  // the last thread's range ends the batch or is empty
    __syncthreads();
  }
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

template <class T, int kHeadDim, int kColumnTiles>
class SegmentScorer {
 public:
  using Shape = ScoreShape<kHeadDim, kColumnTiles>;
  using Ring = typename Shape::Ring;
  static constexpr int kChunks = kHeadDim / 32;  // 64 bytes of a key: two steps of the product

  __device__ SegmentScorer(const Args& args, Ring& ring, int lane)
      : args_(args), ring_(ring), lane_(lane), row_(lane / 4), quad_(lane % 4) {}

  __device__ void run(const Segment& segment, const PassSequence& sequence, int64_t tile_start) {
    load_queries(segment);
    const int32_t last_visible = sequence.visible(segment.first_query + segment.queries - 1);
    const int32_t first_key = segment.first_tile * kScoreTile;
    const int32_t keys = min(segment.last_tile * kScoreTile, last_visible) - first_key;
    const int32_t stages = (keys + kStageKeys - 1) / kStageKeys;
    page_fault_ = false;

    // Lane i knows the row of stage `window` + i; the next window's pages are read one window ahead.
    uint32_t rows = stage_row(segment, first_key, 0, stages);
    uint32_t next_rows = stage_row(segment, first_key, 32, stages);
    int32_t filled = 0;
    const auto fill_next = [&] {
      if (filled < stages) {
        const uint32_t row = __shfl_sync(kFullWarp, rows, filled % 32);
        ring_.fill(static_cast<const char*>(args_.p.key_pages) + int64_t{row} * (kHeadDim * 2));
        if (++filled % 32 == 0) {
          rows = next_rows;
          next_rows = stage_row(segment, first_key, filled + 32, stages);
        }
      } else {
        ring_.skip_fill();
      }
    };
    for (int i = 0; i < Shape::kStages; ++i) fill_next();

    int32_t stage = 0;
    for (int32_t tile = segment.first_tile; tile < segment.last_tile; ++tile) {
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
      finish_tile(segment, sequence, tile_start, tile, scores);
    }
    if (__any_sync(kFullWarp, page_fault_)) poison(segment, sequence, tile_start);
  }

 private:
  // First row (of kHeadDim elements, counted from key_pages) of stage `first` + lane of the segment.
  __device__ uint32_t stage_row(const Segment& segment, int32_t first_key, int32_t first, int32_t stages) {
    const int32_t stage = first + lane_;
    if (stage >= stages) return 0;
    const int32_t key = first_key + stage * kStageKeys;
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

  __device__ void load_queries(const Segment& segment) {
    const int64_t first_token =
        (args_.one_query_each ? segment.sequence : args_.p.query_start[segment.sequence]) + args_.first_query;
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
      const int column = 8 * n + row_;
      const int query = column / args_.group;
      const bool used = query < segment.queries;
      const int64_t token = first_token + segment.first_query + (used ? query : 0);
      const int head = segment.kv_head * args_.group + column % args_.group;
      const T* source =
          static_cast<const T*>(args_.p.query) + token * args_.p.query_stride + head * kHeadDim + quad_ * 8;
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
  __device__ void score_stage(const char* stage, int i, float (&scores)[kColumnTiles][4][4]) {
    const char* low = stage + (2 * row_) * (kHeadDim * 2) + quad_ * 16;
    const char* high = low + kHeadDim * 2;
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

  __device__ int64_t row_tile(const Segment& segment, const PassSequence& sequence, int64_t tile_start,
                              int column, int32_t tile) const {
    const int32_t query = segment.first_query + column / args_.group;
    const int32_t head = segment.kv_head * args_.group + column % args_.group;
    return (tile_start + int64_t{query} * sequence.tiles) * args_.p.num_q_heads +
           int64_t{head} * sequence.tiles + tile;
  }

  // Turns a tile's products into weights. This lane has, in stage i, keys 16 i + 2 row_ + {0, 1} of columns 2
  // quad_ and 2 quad_ + 1 of each column tile.
  __device__ void finish_tile(const Segment& segment, const PassSequence& sequence, int64_t tile_start,
                              int32_t tile, float (&scores)[kColumnTiles][4][4]) {
    const float scale = args_.p.scale * 1.4426950408889634f;  // log2(e)
    const int32_t first_key = tile * kScoreTile;
    const bool all_visible = first_key + kScoreTile <= sequence.visible(segment.first_query);
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        const int column = 8 * n + 2 * quad_ + side;
        const int query = column / args_.group;
        const bool used = query < segment.queries;
        float largest = -INFINITY;
        if (all_visible) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            largest = fmaxf(largest, fmaxf(scores[n][i][side], scores[n][i][2 + side]));
          }
        } else {
          const int32_t visible = sequence.visible(segment.first_query + query) - first_key;
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int key = 16 * i + 2 * row_;
            if (key >= visible) scores[n][i][side] = -INFINITY;
            if (key + 1 >= visible) scores[n][i][2 + side] = -INFINITY;
            largest = fmaxf(largest, fmaxf(scores[n][i][side], scores[n][i][2 + side]));
          }
        }
#pragma unroll
        for (int d = 4; d < 32; d *= 2) largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, d));
        // A tile this query does not see keeps weights of zero.
        const float shift = largest == -INFINITY ? 0.0f : largest * scale;
        uint32_t packed[4];
        float sum = 0;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const __half2 pair = __floats2half2_rn(exp2f(fmaf(scores[n][i][side], scale, -shift)),
                                                 exp2f(fmaf(scores[n][i][2 + side], scale, -shift)));
          const float2 rounded = __half22float2(pair);
          sum += rounded.x + rounded.y;
          packed[i] = *reinterpret_cast<const uint32_t*>(&pair);
        }
#pragma unroll
        for (int d = 4; d < 32; d *= 2) sum += __shfl_xor_sync(kFullWarp, sum, d);
        if (used) {
          const int64_t index = row_tile(segment, sequence, tile_start, column, tile);
          reinterpret_cast<uint4*>(args_.weights + index * kScoreTile)[row_] = {packed[0], packed[1],
                                                                                packed[2], packed[3]};
          if (row_ == 0) args_.stats[index] = {largest * scale, sum};
        }
      }
    }
  }

  // A page outside the pool: its keys are unknown, so every row of the segment becomes NaN.
  __device__ void poison(const Segment& segment, const PassSequence& sequence, int64_t tile_start) {
    for (int column = lane_; column < segment.queries * args_.group; column += 32) {
      args_.stats[row_tile(segment, sequence, tile_start, column, segment.first_tile)] = {NAN, NAN};
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

// Grid: one block a multiprocessor, each warp on its own. Decode gives every warp an equal run of the batch's
// score tiles, across sequences and KV heads; prefill deals whole blocks of queries, which are many.
template <class T, int kHeadDim, int kColumnTiles>
__global__ void __launch_bounds__(256, 1) score_kernel(const __grid_constant__ Args args) {
  using Shape = ScoreShape<kHeadDim, kColumnTiles>;
  extern __shared__ __align__(128) char shared[];
  let_dependents_start();
  const int warps = static_cast<int>(blockDim.x) / 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto batch = static_cast<int32_t>(args.p.batch);
  char* const barriers = shared + warps * Shape::kWarpBytes;
  auto* const tile_start = reinterpret_cast<int32_t*>(barriers + warps * Shape::Ring::kBarrierBytes);
  int32_t* const item_start = tile_start + batch + 1;
  int32_t* const scratch = item_start + batch + 1;
  typename Shape::Ring ring(shared + warp * Shape::kWarpBytes,
                            reinterpret_cast<uint64_t*>(barriers + warp * Shape::Ring::kBarrierBytes), lane);

  const int32_t block_queries = Shape::kColumns / args.group;
  const bool by_tile = args.one_query_each;
  const bool reports = blockIdx.x == 0;
  prefix_sums(batch, tile_start, item_start, scratch, [&](int32_t b) {
    FaultCode fault;
    const PassSequence s = pass_sequence(args, b, &fault);
    if (fault != kFaultNone && reports) {
      const int32_t budget = budget_of(args, b);
      const bool of_length = fault == kFaultLength;
      record_fault(args, fault, b,
                   fault == kFaultQueries ? s.queries
                   : of_length            ? s.length
                                          : budget,
                   fault == kFaultQueries  ? args.max_queries
                   : of_length             ? args.max_length
                   : fault == kFaultBudget ? args.max_budget
                                           : tile_count(s.length, args.p.tile));
    }
    return int2{s.count * s.tiles, by_tile ? s.tiles : (s.count + block_queries - 1) / block_queries};
  });
  const bool fits = tile_start[batch] <= args.tile_capacity;
  if (reports) {
    if (!fits && threadIdx.x == 0)
      record_fault(args, kFaultTotalLength, batch, tile_start[batch], args.tile_capacity);
    for (int32_t b = static_cast<int32_t>(threadIdx.x); b <= batch; b += static_cast<int32_t>(blockDim.x)) {
      args.tile_start[b] = tile_start[b];
    }
  }
  const int64_t rows = args.parts > 1 ? args.p.num_q_heads * args.num_queries : 0;
  for (int64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < rows; i += gridDim.x * blockDim.x)
    args.arrivals[i] = 0;
  if (!fits) return;

  SegmentScorer<T, kHeadDim, kColumnTiles> scorer(args, ring, lane);
  const int64_t items = int64_t{item_start[batch]} * args.p.num_kv_heads;
  const int64_t workers = int64_t{gridDim.x} * warps;
  // Neighbouring shares go to different multiprocessors, so that a short batch occupies all of them.
  const int64_t worker = int64_t{warp} * gridDim.x + blockIdx.x;
  FaultCode ignored;
  if (by_tile) {
    int64_t item = items * worker / workers;
    const int64_t end = items * (worker + 1) / workers;
    while (item < end) {
      const int32_t b = last_at_or_below(item_start, batch, static_cast<int32_t>(item / args.p.num_kv_heads));
      const PassSequence sequence = pass_sequence(args, b, &ignored);
      const auto offset = static_cast<int32_t>(item - int64_t{item_start[b]} * args.p.num_kv_heads);
      const int32_t kv_head = offset / sequence.tiles;
      const int32_t first_tile = offset - kv_head * sequence.tiles;
      const auto tiles = static_cast<int32_t>(min(int64_t{sequence.tiles - first_tile}, end - item));
      scorer.run({b, kv_head, 0, 1, first_tile, first_tile + tiles}, sequence, tile_start[b]);
      item += tiles;
    }
  } else {
    for (int64_t item = worker; item < items; item += workers) {
      const auto block = static_cast<int32_t>(item / args.p.num_kv_heads);
      const auto kv_head = static_cast<int32_t>(item % args.p.num_kv_heads);
      const int32_t b = last_at_or_below(item_start, batch, block);
      const PassSequence sequence = pass_sequence(args, b, &ignored);
      const int32_t first = (block - item_start[b]) * block_queries;
      const int32_t queries = min(block_queries, sequence.count - first);
      scorer.run({b, kv_head, first, queries, 0, score_tiles(sequence.visible(first + queries - 1))},
                 sequence, tile_start[b]);
    }
  }
}

}  // namespace allot::kernels::cuda
