// First kernel of a launch: reads every visible key once and leaves, for every row, the weights of its keys
// and the statistics of its score tiles (S2ANTA paper, Algorithm 3 with the optional stash; the stash is half
// precision relative to the tile's maximum, 2 bytes a key and head against 2 * head_dim of the key itself).
//
// A short decode step is a chain of latencies, and fetching cold instructions is one of them, so the code
// here is kept small, above all the part that a first piece runs through.
#pragma once

#include <bit>
#include <cstdint>

#include "base/round_up.h"
#include "kernels/cuda/announcer.cuh"
#include "kernels/cuda/args.h"
#include "kernels/cuda/batch_index.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/item_numbers.cuh"
#include "kernels/cuda/kernel_table.h"
#include "kernels/cuda/products.cuh"
#include "kernels/cuda/sequences.cuh"
#include "kernels/cuda/tile_norms.cuh"
#include "kernels/cuda/tile_weights.cuh"
#include "kernels/cuda/warp_ring.cuh"

namespace allot::kernels::cuda {

// Geometry of the score kernel for KeyProducts or SplitProducts.
template <class Products, ScoreUse kUse>
struct ScoreShape {
  // Stages of a step, which are copied, waited for and multiplied together. A warp has its instructions one
  // after the other, most of them waiting for the one before, so it takes two stages in less time than one
  // twice.
  static constexpr int kStep = kUse == ScoreUse::kPrefill ? 1 : Products::kDecodeStep;
  static_assert(kStep <= 2);
  // From a stage of a step to the next.
  static constexpr int kPitch = static_cast<int>(round_up(Products::kStageBytes, 128));
  static constexpr int kStepBytes = (kStep - 1) * kPitch + Products::kStageBytes;
  static constexpr int kSteps = std::bit_floor(unsigned{Products::kRingBytes} / kStepBytes);
  static_assert(kSteps >= 2);
  static constexpr int kColumns = Products::kColumns;
  using Ring = WarpRing<kStepBytes, kSteps>;
  using Announcer = cuda::Announcer<kUse == ScoreUse::kPrefill ? 1 : Products::kAnnouncedTogether>;
  static constexpr int kWarpBytes = Ring::kBytes;
};

// Dynamic shared memory of a block of `warps` warps for `batch` sequences: the rings and their barriers, an
// index of up to kWarpBatch sequences a warp, an index of the batch, scratch, and the words of Announcer.
template <class Shape>
__host__ __device__ constexpr int64_t score_shared_bytes(int warps, int64_t batch) {
  return int64_t{warps} * (Shape::kWarpBytes + Shape::Ring::kBarrierBytes + 4 * (2 * kWarpBatch + 1)) +
         4 * (2 * batch + 1) + 4 * 32 + 4 * Shape::Announcer::words(warps);
}

// A warp's unit of work: consecutive score tiles, at most args.piece_tiles, of one sequence, KV head and
// block of queries. Pieces are small and handed out one by one, because multiprocessors differ in how
// fast they read.
struct Piece {
  bool exists = false;
  bool bad_page = false;  // lane's own: among those of the lane's stages
  int32_t steps = 0;
  int32_t sequence;
  int32_t kv_head;
  int32_t slot;     // place of the block's first query in the pass
  int32_t queries;  // of the block
  int32_t visible;  // keys the first query sees; each further one sees one more
  int32_t first_tile = 0;
  int32_t last_tile = 0;  // exclusive
  uint32_t norm_places;   // lane's own: norm_place of its eight keys, where norms are wanted

  // That its last query sees.
  __device__ __forceinline__ int32_t keys() const { return visible + queries - 1; }
};

// Pages of the stages of a lane's first step, asked for before the lengths are known, as if all sequences had
// max_length keys: a short decode step is a chain of latencies, and this takes one out of it where the guess
// is right.
template <int kStep>
struct FirstPages {
  int32_t of_stages[kStep] = {};
};

template <int kStep>
__device__ __forceinline__ FirstPages<kStep> guess_first_pages(const Args& args, int32_t worker, int lane) {
  FirstPages<kStep> pages;
  const int32_t unit = args.num_kv_heads.quotient(worker);
  const int32_t b = args.full_pieces.quotient(unit);
  if (b >= args.p.batch) return pages;
  const int32_t first_tile = (unit - b * args.full_pieces.value()) * args.piece_tiles;
#pragma unroll
  for (int j = 0; j < kStep; ++j) {
    const int32_t entry = args.page_size.quotient(first_tile * kScoreTile + (lane * kStep + j) * kStageKeys);
    pages.of_stages[j] = page_number(args, b, min(entry, args.p.max_pages - 1));
  }
  return pages;
}

template <class Products, ScoreUse kUse>
class PieceScorer {
  static constexpr bool kDecode = kUse != ScoreUse::kPrefill;

 public:
  using Shape = ScoreShape<Products, kUse>;
  using Ring = typename Shape::Ring;

  __device__ __forceinline__ PieceScorer(const Args& args, Ring& ring, typename Shape::Announcer& announcer,
                                         const int32_t* item_start, const int32_t* lengths, int lane,
                                         bool begun, const FirstPages<Shape::kStep>& first_pages)
      : args_(args),
        ring_(ring),
        announcer_(announcer),
        item_start_(item_start),
        lengths_(lengths),
        items_(item_start[args.p.batch] * args.p.num_kv_heads),
        lane_(lane),
        kept_(keep_in_l2()),
        begun_(begun),
        products_(lane) {
#pragma unroll
    for (int j = 0; j < kStep; ++j) rows_[j] = static_cast<uint32_t>(first_pages.of_stages[j]);
  }

  // A piece is looked up while the one before it is processed. An empty piece comes before the first, so that
  // this code exists only once.
  __device__ __forceinline__ void run(int32_t worker, int32_t workers) {
    Piece piece;
    FinishedTiles finished;
    ItemNumbers numbers(args_.next_piece, items_, worker, workers);
#pragma unroll 1
    do {
      const Piece next = load_piece(numbers.number());
      if (kDecode && !begun_) begin(next);
      fill();
      if (piece.exists) {
        load_queries(piece);
        numbers.take_next();
      } else {
        numbers.take_own();
      }
      const bool bad_page = __any_sync(kFullWarp, piece.bad_page);
#pragma unroll 1
      for (int32_t tile = piece.first_tile;; ++tile) {
        const bool exists = tile < piece.last_tile;
        typename Products::Scores scores;
        TileNorms norms;
        if (exists) {
          // Before the keys are waited for.
          if (norms_wanted())
            norms.load(args_.p.value_norms, piece.norm_places, (tile - piece.first_tile) * kTileEights, tile,
                       piece.keys(), lane_);
          score_tile(piece.steps - (tile - piece.first_tile) * kTileSteps, scores);
        }
        // A piece is announced when the next one's first tile has been read: by then its stores have long
        // arrived.
        if (kDecode && tile == piece.first_tile) announcer_.announce(finished);
        if constexpr (kUse == ScoreUse::kDecodeWithNorms) {
          if (tile == piece.first_tile && next.exists) prefetch(args_.p.value_norms + next.norm_places);
        }
        if (!exists) break;
        finish(piece, tile, bad_page, scores, norms);
      }
      finished = {
          .pair = piece.sequence * args_.p.num_kv_heads + piece.kv_head,
          .tiles = kDecode && piece.sequence < args_.announced ? piece.last_tile - piece.first_tile : 0};
      piece = next;
    } while (piece.exists || finished.tiles > 0);
    if (kDecode) announcer_.announce_rest();
  }

 private:
  static constexpr int kStep = Shape::kStep;
  static constexpr int32_t kStepKeys = kStep * kStageKeys;
  static constexpr int kTileSteps = kScoreTile / kStepKeys;

  // Where the stages of a step lie: from these rows on, of which the second may be kNoRow.
  struct StepSource {
    const Args& args;
    uint32_t rows[kStep];

    __device__ __forceinline__ bool has_second() const { return kStep == 2 && rows[kStep - 1] != kNoRow; }
    __device__ __forceinline__ int32_t bytes() const { return (1 + has_second()) * Products::kStageBytes; }
    template <class Copy>
    __device__ __forceinline__ void each(const Copy& copy) const {
      copy(0, Products::stage(args, rows[0]), Products::kStageBytes);
      if (has_second()) copy(Shape::kPitch, Products::stage(args, rows[kStep - 1]), Products::kStageBytes);
    }
    __device__ __forceinline__ StepSource of_lane(int lane) const {
      StepSource source{args, {}};
#pragma unroll
      for (int j = 0; j < kStep; ++j) source.rows[j] = __shfl_sync(kFullWarp, rows[j], lane);
      return source;
    }
  };

  __device__ __forceinline__ bool norms_wanted() const {
    if constexpr (!Products::kHasNorms) return false;
    return kUse == ScoreUse::kPrefill ? args_.norm_stats != nullptr : kUse == ScoreUse::kDecodeWithNorms;
  }

  // Waits for the kernels before. Keys that do not depend on them are asked for already: all but the step
  // with the sequence's last one.
  __device__ __forceinline__ void begin(const Piece& first) {
    begun_ = true;
    if (first.exists) {
      const bool has_last = first.last_tile == score_tiles(first.keys());
      ring_.fill(known_steps_ - has_last, source());
    }
    wait_for_predecessor();
    let_dependents_start();
  }

  __device__ __forceinline__ void fill() {
    ring_.fill(known_steps_, source());
  }

  __device__ __forceinline__ StepSource source() const {
    StepSource source{args_, {}};
#pragma unroll
    for (int j = 0; j < kStep; ++j) source.rows[j] = rows_[j];
    return source;
  }

  // Piece number `item` of the batch; its steps join those the ring will be filled with. Items are ordered
  // by sequence, block of queries, tile and KV head, so that a decode step completes its sequences in order.
  __device__ __forceinline__ Piece load_piece(int32_t item) {
    Piece piece;
    if (item >= items_) return piece;
    piece.exists = true;
    const int32_t unit = args_.num_kv_heads.quotient(item);
    const int32_t b = last_at_or_below(item_start_, static_cast<int32_t>(args_.p.batch), unit);
    int32_t place = unit - item_start_[b];
    piece.sequence = b;
    piece.kv_head = item - unit * args_.num_kv_heads.value();
    if constexpr (kDecode) {
      piece.slot = b - args_.first_query;
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
    const int32_t keys = piece.keys();
    piece.first_tile = place * args_.piece_tiles;
    piece.last_tile = min(score_tiles(keys), piece.first_tile + args_.piece_tiles);
    const int32_t first_key = piece.first_tile * kScoreTile;
    // Early queries see fewer keys than the last one: their blocks' last pieces are empty.
    const int32_t end = min(keys, piece.last_tile * kScoreTile);
    piece.steps = max(0, (end - first_key + kStepKeys - 1) / kStepKeys);
    const int32_t ahead = (lane_ - known_steps_) & 31;
    // In the warp's first piece rows_ are what guess_first_pages() has asked for; every piece of a decode
    // step has steps.
    const bool guessed = kDecode && known_steps_ == 0 && unit - place == b * args_.full_pieces.value() &&
                         place < args_.full_pieces.value();
    if (ahead < piece.steps) {
#pragma unroll
      for (int j = 0; j < kStep; ++j) {
        const int32_t key = first_key + ahead * kStepKeys + j * kStageKeys;
        if (j > 0 && key >= end) {
          rows_[j] = kNoRow;
          continue;
        }
        const int32_t page =
            guessed ? static_cast<int32_t>(rows_[j]) : page_number(args_, b, args_.page_size.quotient(key));
        rows_[j] = key_row(args_, b, piece.kv_head, key, page, &piece.bad_page);
      }
    }
    known_steps_ += piece.steps;
    static_assert(kMaxPieceTiles * kTileEights <= 32, "a lane for every eight keys of a piece");
    if (norms_wanted()) piece.norm_places = norm_place(args_, b, piece.kv_head, first_key + 8 * lane_, keys);
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
    products_.load(args_, [&](int column) -> QueryPlace {
      const int query = column_query(column);
      return {query < piece.queries, int64_t{args_.first_query} + piece.slot + query,
              column_head(piece.kv_head, column)};
    });
  }

  // Products of a tile's first `steps` steps. What a step has beyond the last key, finish() hides.
  __device__ __forceinline__ void score_tile(int32_t steps, typename Products::Scores& scores) {
#pragma unroll
    for (int i = 0; i < kTileSteps; ++i) {
      if (i < steps) {
        const uint32_t keys = ring_.wait();
#pragma unroll
        for (int j = 0; j < kStep; ++j) products_.multiply(keys, j * Shape::kPitch, i * kStep + j, scores);
        ring_.advance();
        fill();
      } else {
#pragma unroll
        for (int j = 0; j < kStep; ++j) Products::clear(i * kStep + j, scores);
      }
    }
  }

  __device__ __forceinline__ void finish(const Piece& piece, int32_t tile, bool bad_page,
                                         typename Products::Scores& scores, const TileNorms& norms) {
    products_.finish(
        scores, args_.p.scale * kLog2E,
        [&](int column) { return piece.visible + column_query(column) - tile * kScoreTile; },
        [&](int column, const uint4(&weights)[Products::kVectors], TileStats stats) {
          const int query = column_query(column);
          if (query >= piece.queries) return;
          const int64_t row =
              int64_t{piece.slot + query} * args_.p.num_q_heads + column_head(piece.kv_head, column);
          const int64_t index = row * args_.row_tiles + tile;
          uint16_t* const target = args_.weights + index * kScoreTile;
#pragma unroll
          for (int v = 0; v < Products::kVectors; ++v)
            store_kept(target + products_.position(v), weights[v], kept_);
          // The keys of a page outside the pool are unknown, so every row that wanted them becomes NaN.
          if (bad_page) stats = {NAN, NAN};
          if (products_.leads()) args_.stats[index] = stats;
          if constexpr (Products::kHasNorms) {
            if (!norms_wanted()) return;
            const NormStats norm_stats = norms.stats_of(weights, lane_);
            if (products_.leads()) args_.norm_stats[index] = norm_stats;
          }
        });
  }

  const Args& args_;
  Ring& ring_;
  typename Shape::Announcer& announcer_;
  const int32_t* const item_start_;
  const int32_t* const lengths_;  // decode: from shared memory, because the next piece must not wait for them
  const int32_t items_;
  const int lane_;
  const uint64_t kept_;
  bool begun_;  // the kernels before have ended
  Products products_;
  // Among all cached keys, of the stages of the next step whose number is the lane's modulo 32.
  uint32_t rows_[kStep] = {};
  int32_t known_steps_ = 0;
};

// Blocks that the registers of a multiprocessor have room for. Only one block is launched, but the value
// kernel's blocks stand beside it only where it leaves them half of the registers. Wide products need more.
template <class Products, ScoreUse kUse>
inline constexpr int kScoreBlocks = (kUse == ScoreUse::kDecode && Products::kColumns <= 8) ? 2 : 1;

// Grid: one block a multiprocessor, each warp on its own.
template <class Products, ScoreUse kUse>
__global__ void __launch_bounds__(256, (kScoreBlocks<Products, kUse>))
    score_kernel(const __grid_constant__ Args args) {
  constexpr bool kDecode = kUse != ScoreUse::kPrefill;
  using Shape = ScoreShape<Products, kUse>;
  extern __shared__ __align__(128) char shared[];
  const int warps = static_cast<int>(blockDim.x) / 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto batch = static_cast<int32_t>(args.p.batch);
  char* const barriers = shared + warps * Shape::kWarpBytes;
  auto* const own_index = reinterpret_cast<int32_t*>(barriers + warps * Shape::Ring::kBarrierBytes);
  const bool alone = batch <= kWarpBatch;
  int32_t* const batch_index = own_index + (2 * kWarpBatch + 1) * warps;
  int32_t* const item_start = alone ? own_index + (2 * kWarpBatch + 1) * warp : batch_index;
  int32_t* const lengths = item_start + batch + 1;
  auto* const announced = reinterpret_cast<uint32_t*>(batch_index + 2 * batch + 1 + 32);
  Shape::Announcer::begin(announced, warps);
  typename Shape::Announcer announcer(args.ready, announced, warps, warp, lane);
  // Keys are read once: they must not push the weights out of L2, so they leave it first.
  typename Shape::Ring ring(shared + warp * Shape::kWarpBytes,
                            reinterpret_cast<uint64_t*>(barriers + warp * Shape::Ring::kBarrierBytes), lane);
  // In this order, here or in PieceScorer::begin(): the value kernel, which may start then, reads lengths,
  // budgets and draws without waiting, and the predecessor may have written them.
  const bool settled = kDecode && args.settled_keys;
  if (!settled) {
    wait_for_predecessor();
    let_dependents_start();
  }
  // Neighbouring pieces go to different multiprocessors, so that a short batch occupies all of them.
  const int32_t worker = warp * static_cast<int32_t>(gridDim.x) + static_cast<int32_t>(blockIdx.x);
  FirstPages<Shape::kStep> first_pages;
  if constexpr (kDecode) first_pages = guess_first_pages<Shape::kStep>(args, worker, lane);
  // Items: the pieces of a sequence for one KV head.
  const int32_t block_queries = Shape::kColumns / args.group;
  const auto count_items = [&](int32_t b) {
    FaultCode fault;
    const PassSequence s = scored_sequence(args, b, &fault);
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
  PieceScorer<Products, kUse> scorer(args, ring, announcer, item_start, lengths, lane, !settled, first_pages);
  scorer.run(worker, static_cast<int32_t>(gridDim.x) * warps);
}

}  // namespace allot::kernels::cuda
