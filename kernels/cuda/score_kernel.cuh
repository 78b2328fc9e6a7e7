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
#include "kernels/cuda/batch_index.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/sequences.cuh"
#include "kernels/cuda/tile_weights.cuh"
#include "kernels/cuda/warp_ring.cuh"

namespace allot::kernels::cuda {

// Geometry of the score kernel for elements of 2 bytes.
template <int kHeadDim, int kColumnTiles>
struct ScoreShape {
  static constexpr int kStageBytes = kStageKeys * kHeadDim * 2;
  // 16 KiB a warp: with eight warps enough in flight for an H200 to read at full rate, and room for the value
  // kernel's blocks beside them.
  static constexpr int kStages = 16 * 1024 / kStageBytes;
  static constexpr int kColumns = 8 * kColumnTiles;
  using Ring = WarpRing<kStageBytes, kStages>;
  static constexpr int kWarpBytes = Ring::kBytes;
};

// Dynamic shared memory of a block of `warps` warps for `batch` sequences: the rings and their barriers, an
// index of up to kWarpBatch sequences a warp, an index of the batch, and scratch.
template <class Shape>
__host__ __device__ constexpr int64_t score_shared_bytes(int warps, int64_t batch) {
  return int64_t{warps} * (Shape::kWarpBytes + Shape::Ring::kBarrierBytes + 4 * (2 * kWarpBatch + 1)) +
         4 * (2 * batch + 1) + 4 * 32;
}

// A warp's unit of work: consecutive score tiles, at most args.piece_tiles, of one sequence, KV head and
// block of queries. Pieces are small and handed out one by one, because multiprocessors differ in how fast
// they read.
struct Piece {
  bool exists = false;
  bool bad_page = false;  // lane i: of stage i
  int32_t stages = 0;
  int32_t sequence;
  int32_t kv_head;
  int32_t slot;     // place of the block's first query in the pass
  int32_t queries;  // of the block
  int32_t visible;  // keys the first query sees; each further one sees one more
  int32_t first_tile;
  int32_t last_tile;  // exclusive
  uint32_t row = 0;   // lane i: first row (of head_dim elements, counted from key_pages) of stage i
};

template <class T, int kHeadDim, int kColumnTiles, bool kDecode>
class PieceScorer {
 public:
  using Shape = ScoreShape<kHeadDim, kColumnTiles>;
  using Ring = typename Shape::Ring;
  static constexpr int kChunks = kHeadDim / 32;  // 64 bytes of a key: two steps of the product

  __device__ __forceinline__ PieceScorer(const Args& args, Ring& ring, const int32_t* item_start,
                                         const int32_t* lengths, int lane)
      : args_(args),
        ring_(ring),
        item_start_(item_start),
        lengths_(lengths),
        items_(item_start[args.p.batch] * args.p.num_kv_heads),
        lane_(lane),
        row_(lane / 4),
        quad_(lane % 4),
        kept_(keep_in_l2()) {}

  // Works off pieces: the warp's own first one, then whichever is next.
  __device__ __forceinline__ void run(int32_t worker, int32_t workers) {
    Piece piece = load_piece(worker);
    // The piece after the one that comes next is asked for before either is worked on.
    int32_t ticket = take_ticket();
    int32_t filled = ring_.fill_first(stage_source(piece.row), piece.stages);
    Piece done;
#pragma unroll 1
    while (piece.exists) {
      if (piece.slot != loaded_slot_ || piece.kv_head != loaded_kv_head_) load_queries(piece);
      Piece next = load_piece(workers + __shfl_sync(kFullWarp, ticket, 0));
      ticket = take_ticket();
      int32_t next_filled = 0;
      const auto fill_next = [&] {
        const bool of_next = filled == piece.stages;
        int32_t& count = of_next ? next_filled : filled;
        if (of_next && next_filled == next.stages) return false;
        ring_.fill(stage_source(__shfl_sync(kFullWarp, of_next ? next.row : piece.row, count)));
        ++count;
        return true;
      };
#pragma unroll 1
      while (ring_.in_flight() < Shape::kStages && fill_next()) {
      }
      int32_t stage = 0;
#pragma unroll 1
      for (int32_t tile = piece.first_tile; tile < piece.last_tile; ++tile) {
        float scores[kColumnTiles][4][4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (stage < piece.stages) {
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
        // A piece is published when the next one's first tile has been read: by then its stores have long
        // arrived, and waiting for them costs nothing.
        if (tile == piece.first_tile) publish(done);
        finish(piece, tile, scores);
      }
      if (piece.last_tile > piece.first_tile) done = piece;
      piece = next;
      filled = next_filled;
    }
    publish(done);
  }

 private:
  __device__ __forceinline__ int32_t take_ticket() const {
    return lane_ == 0 ? atomicAdd(args_.next_piece, 1) : 0;
  }

  __device__ __forceinline__ const char* stage_source(uint32_t row) const {
    return static_cast<const char*>(args_.p.key_pages) + int64_t{row} * (kHeadDim * 2);
  }

  // Piece number `item` of the batch. Items are ordered by sequence, KV head, block of queries and tile, so
  // that a decode step completes its rows in order.
  __device__ __forceinline__ Piece load_piece(int32_t item) const {
    Piece piece;
    if (item >= items_) return piece;
    piece.exists = true;
    const auto batch = static_cast<int32_t>(args_.p.batch);
    const int32_t b = last_at_or_below(item_start_, batch, item / args_.p.num_kv_heads);
    const int32_t of_head = item_start_[b + 1] - item_start_[b];
    const int32_t offset = item - item_start_[b] * args_.p.num_kv_heads;
    piece.sequence = b;
    piece.kv_head = offset / of_head;
    int32_t place = offset - piece.kv_head * of_head;
    if constexpr (kDecode) {
      piece.slot = b;
      piece.queries = 1;
      piece.visible = lengths_[b];
    } else {
      FaultCode ignored;
      const PassSequence sequence = pass_sequence(args_, b, &ignored);
      const int32_t block_queries = Shape::kColumns / args_.group;
      const int32_t of_block = pieces(score_tiles(sequence.visible(sequence.count - 1)));
      const int32_t first = place / of_block * block_queries;
      place -= place / of_block * of_block;
      piece.slot = sequence.slot + first;
      piece.queries = min(block_queries, sequence.count - first);
      piece.visible = sequence.visible(first);
    }
    const int32_t keys = piece.visible + piece.queries - 1;
    piece.first_tile = place * args_.piece_tiles;
    piece.last_tile = min(score_tiles(keys), piece.first_tile + args_.piece_tiles);
    const int32_t first_key = piece.first_tile * kScoreTile;
    // Early queries see fewer keys than the last one: their blocks' last pieces are empty.
    piece.stages =
        max(0, (min(keys, piece.last_tile * kScoreTile) - first_key + kStageKeys - 1) / kStageKeys);
    if (lane_ < piece.stages) {
      piece.row = key_row(args_, b, piece.kv_head, first_key + lane_ * kStageKeys, &piece.bad_page);
    }
    return piece;
  }

  __device__ __forceinline__ int32_t pieces(int32_t tiles) const {
    return (tiles + args_.piece_tiles - 1) / args_.piece_tiles;
  }

  // Query (0-based in the block) and head of a column.
  __device__ __forceinline__ int column_query(int column) const {
    return kDecode ? column >= args_.group : column / args_.group;
  }
  __device__ __forceinline__ int column_head(int32_t kv_head, int column) const {
    return kv_head * args_.group + (kDecode ? column : column % args_.group);
  }

  __device__ __forceinline__ void load_queries(const Piece& piece) {
    loaded_slot_ = piece.slot;
    loaded_kv_head_ = piece.kv_head;
    const int64_t first_token = int64_t{args_.first_query} + piece.slot;
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n) {
      const int column = 8 * n + row_;
      const int query = column_query(column);
      const bool used = query < piece.queries;
      const T* source = static_cast<const T*>(args_.p.query) + (first_token + query) * args_.p.query_stride +
                        column_head(piece.kv_head, column) * kHeadDim + quad_ * 8;
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

  __device__ __forceinline__ int64_t row_tile(const Piece& piece, int column, int32_t tile) const {
    const int32_t slot = piece.slot + column_query(column);
    return (int64_t{slot} * args_.p.num_q_heads + column_head(piece.kv_head, column)) * args_.row_tiles +
           tile;
  }

  __device__ __forceinline__ void finish(const Piece& piece, int32_t tile,
                                         float (&scores)[kColumnTiles][4][4]) {
    finish_tile(
        scores, row_, quad_, args_.p.scale * kLog2E,
        [&](int column) { return piece.visible + column_query(column) - tile * kScoreTile; },
        [&](int column, const uint4& weights, const TileStats& stats) {
          if (column_query(column) >= piece.queries) return;
          const int64_t index = row_tile(piece, column, tile);
          store_kept(args_.weights + index * kScoreTile + 8 * row_, weights, kept_);
          if (row_ == 0) args_.stats[index] = stats;
        });
  }

  __device__ __forceinline__ void publish(const Piece& piece) const {
    if (!piece.exists) return;
    if (__any_sync(kFullWarp, piece.bad_page)) {
      // Its keys are unknown, so every row that wanted them becomes NaN.
      for (int column = lane_; column < piece.queries * args_.group; column += 32) {
        args_.stats[row_tile(piece, column, piece.first_tile)] = {NAN, NAN};
      }
    }
    if (!kDecode || args_.ready == nullptr) return;
    // Every lane's weights must be visible before the count is.
    __syncwarp();
    if (lane_ == 0) {
      add_released(&args_.ready[piece.sequence * args_.p.num_kv_heads + piece.kv_head],
                   piece.last_tile - piece.first_tile);
    }
  }

  const Args& args_;
  Ring& ring_;
  const int32_t* const item_start_;
  const int32_t* const lengths_;  // decode: from shared memory, because the next piece must not wait for them
  const int32_t items_;
  const int lane_;
  const int row_;   // of the product's fragments
  const int quad_;  // lane in the group of four that shares a row
  const uint64_t kept_;
  int32_t loaded_slot_ = -1;  // whose queries are in query_
  int32_t loaded_kv_head_ = -1;
  uint32_t query_[kColumnTiles][kHeadDim / 16][2];
};

// Asks for the page numbers of the warp's first piece before the lengths are known, as if all sequences had
// max_length keys: a short decode step is a chain of latencies, and this takes one out of it where the guess
// is right.
__device__ __forceinline__ void prefetch_pages(const Args& args, int32_t worker, int lane) {
  if (lane != 0) return;
  const int32_t of_head = (args.row_tiles + args.piece_tiles - 1) / args.piece_tiles;
  const int32_t pair = worker / of_head;
  const int32_t b = pair / args.p.num_kv_heads;
  if (b >= args.p.batch) return;
  const int32_t key = (worker - pair * of_head) * args.piece_tiles * kScoreTile;
  prefetch(&args.p.page_table[int64_t{b} * args.p.max_pages + key / args.p.page_size]);
}

// Grid: one block a multiprocessor, each warp on its own. kDecode: one query a sequence.
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
  auto* const own_index = reinterpret_cast<int32_t*>(barriers + warps * Shape::Ring::kBarrierBytes);
  const bool alone = batch <= kWarpBatch;
  int32_t* const item_start = own_index + (2 * kWarpBatch + 1) * (alone ? warp : warps);
  int32_t* const lengths = item_start + batch + 1;
  typename Shape::Ring ring(shared + warp * Shape::kWarpBytes,
                            reinterpret_cast<uint64_t*>(barriers + warp * Shape::Ring::kBarrierBytes), lane);
  if constexpr (kDecode) {
    prefetch_pages(args, warp * static_cast<int32_t>(gridDim.x) + static_cast<int32_t>(blockIdx.x), lane);
  }
  // Items: the pieces of a sequence for one KV head.
  const int32_t block_queries = Shape::kColumns / args.group;
  const auto count_items = [&](int32_t b) {
    FaultCode fault;
    const PassSequence s = pass_sequence(args, b, &fault);
    if (blockIdx.x == 0) report_fault(args, fault, b, s);
    if (kDecode) lengths[b] = s.length;
    if (s.count == 0) return 0;
    const int32_t blocks = kDecode ? 1 : (s.count + block_queries - 1) / block_queries;
    return blocks * ((score_tiles(s.visible(s.count - 1)) + args.piece_tiles - 1) / args.piece_tiles);
  };
  if (alone) {
    warp_prefix_sum(batch, item_start, lane, count_items);
  } else {
    block_prefix_sum(batch, item_start, lengths + batch, count_items);
  }
  PieceScorer<T, kHeadDim, kColumnTiles, kDecode> scorer(args, ring, item_start, lengths, lane);
  // Neighbouring pieces go to different multiprocessors, so that a short batch occupies all of them.
  scorer.run(warp * static_cast<int32_t>(gridDim.x) + static_cast<int32_t>(blockIdx.x),
             static_cast<int32_t>(gridDim.x) * warps);
}

}  // namespace allot::kernels::cuda
