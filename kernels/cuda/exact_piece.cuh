// What the warps of a block of the exact decode kernel share: pieces of rows, and the shared memory through
// which those that multiply (exact_decode_kernel.cuh) leave their sums to those that add (exact_sums.cuh).
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/cuda/batch_index.cuh"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/warp_ring.cuh"

namespace allot::kernels::cuda {

// Warps of a block that add what the others have of a piece, and all parts of a row once the last one is
// there. They are apart from those that multiply, which so never wait for each other or for another block.
inline constexpr int kAddingWarps = 4;

// Items of a block that it has from the start, before it takes whichever is next.
inline constexpr int kItemsAhead = 4;

// Two sums, each relative to its own largest score, become one that is relative to the larger of these, by a
// factor each.
struct MergeFactors {
  float before;  // of the sum that was there
  float added;   // of the one that joins it
};

// Of a class of exact_keys.cuh.
template <class Keys>
struct ExactDecodeShape {
  static constexpr int kHeadDim = Keys::kHeadDim;
  static constexpr int kColumnTiles = Keys::kColumnTiles;
  // Warps of a block that multiply: as many as registers allow. Together they have 128 KiB of keys and values
  // in flight.
  static constexpr int kWarps = kHeadDim * kColumnTiles <= 128 ? 8 : 4;
  static constexpr int kValueBytes = kStageKeys * kHeadDim * 2;
  static constexpr int kStages = 128 * 1024 / kWarps / static_cast<int>(std::bit_ceil(unsigned{kValueBytes}));
  // Stages of keys and of values take turns.
  static constexpr int kStageBytes = Keys::kStageBytes > kValueBytes ? Keys::kStageBytes : kValueBytes;
  using Ring = WarpRing<kStageBytes, kStages>;
  static constexpr int kColumns = 8 * kColumnTiles;
  static constexpr int kColumnFloats = kHeadDim + 4;  // keeps a warp's stores of its sums apart in the banks
  // Sums of the warps, twice: a warp may be done with the next piece while those of the one before are added.
  static constexpr int kSumBytes = 2 * kColumns * kColumnFloats * 4;
  static constexpr int kStatBytes = 2 * kColumns * static_cast<int>(sizeof(TileStats));
  static constexpr int kWarpBytes = Ring::kBytes + kSumBytes + kStatBytes + Ring::kBarrierBytes;
  // Sums of a span so far, with the largest scores and sums of weights after each of its parts.
  static constexpr int kSpanBytes =
      kColumns * kHeadDim * 4 + kMostSpanParts * kColumns * static_cast<int>(sizeof(TileStats));
  // Factors of the parts and spans of a row.
  static constexpr int kFactorBytes =
      kColumns * (kMostExactParts * static_cast<int>(sizeof(MergeFactors)) + kMostExactSpans * 4);
  // Either is needed while the other is not.
  static constexpr int kAddingBytes = kSpanBytes > kFactorBytes ? kSpanBytes : kFactorBytes;
  // And sums of slices of a row; barriers, items and a verdict; scratch.
  static constexpr int kBlockBytes = kAddingBytes + 32 * kAddingWarps * 16 + 64 + 4 * 32;
};

template <class Shape>
__host__ __device__ constexpr int64_t exact_decode_shared_bytes(int warps, int64_t batch) {
  return int64_t{warps} * Shape::kWarpBytes + Shape::kBlockBytes + 4 * (2 * batch + 1);
}

// A part of a row group, and the unit of work that it belongs to: parts that a block takes together.
struct ExactPiece {
  bool exists = false;
  int32_t sequence = 0;
  int32_t kv_head = 0;
  int32_t slot = 0;  // place of the query in the pass
  int32_t keys = 0;  // visible ones; negative: the sequence breaks its bounds
  int32_t parts = 1;
  int32_t part = 0;
  int32_t unit_begin = 0;  // parts of the unit
  int32_t unit_end = 1;
  int32_t first_pair = 0;  // of the part, in 16 keys
  int32_t last_pair = 0;   // exclusive

  __device__ __forceinline__ bool ends_unit() const { return part + 1 == unit_end; }
  __device__ __forceinline__ bool is_whole_row() const { return unit_begin == 0 && unit_end == parts; }
  __device__ __forceinline__ void set_pairs() {
    const int32_t pairs = (keys + kStageKeys - 1) / kStageKeys;
    first_pair = exact_part_begin(pairs, part, parts);
    last_pair = exact_part_begin(pairs, part + 1, parts);
  }
};

// Shared memory of a block beside the rings of its warps.
template <class Shape>
struct ExactShared {
  const int32_t* unit_start;  // [batch + 1]
  const int32_t* lengths;     // [batch]; negative where a sequence breaks its bounds
  float* sums;                // [2, warps, columns, kColumnFloats]
  TileStats* stats;           // [2, warps, columns]
  float* span_sums;           // [columns, kHeadDim] of a span's parts so far
  TileStats* span_stats;      // [kMostSpanParts, columns]
  MergeFactors* factors;      // [columns, kMostExactParts] in the place of the sums, where spans are added
  float* span_factors;        // [columns, kMostExactSpans]
  float4* slices;             // [threads that add]
  uint64_t* left;             // [2] barriers: all warps have left their sums of a piece in a buffer
  uint64_t* added;            // [2] and these have been added
  int32_t* items;             // [kItemsAhead] items of the block's units; number n at n modulo that
  int32_t* verdict;           // whether this block was the last of its row's
  int warps;                  // that multiply
  bool takes_spans;           // units are spans, not parts

  __device__ __forceinline__ TileStats* stats_of(int buffer, int warp) const {
    return stats + (buffer * warps + warp) * Shape::kColumns;
  }
  __device__ __forceinline__ float* sums_of(int buffer, int warp) const {
    return sums + (buffer * warps + warp) * (Shape::kColumns * Shape::kColumnFloats);
  }

  // The next item of the launch that nobody has. Every item is followed by one such call.
  __device__ __forceinline__ int32_t take_item(const Args& args) const {
    const int32_t items = unit_start[args.p.batch] * args.num_kv_heads.value();
    return kItemsAhead * static_cast<int32_t>(gridDim.x) + take_number(args.next_piece, items);
  }

  // The first piece of an item of the launch. Items are ordered by sequence, unit and KV head.
  __device__ __forceinline__ ExactPiece first_piece(const Args& args, int32_t item) const {
    ExactPiece piece;
    const auto batch = static_cast<int32_t>(args.p.batch);
    const int32_t unit = args.num_kv_heads.quotient(item);
    if (unit >= unit_start[batch]) return piece;
    piece.exists = true;
    piece.sequence = last_at_or_below(unit_start, batch, unit);
    piece.kv_head = item - unit * args.num_kv_heads.value();
    const int32_t query =
        args.one_query_each ? piece.sequence : static_cast<int32_t>(args.p.query_start[piece.sequence]);
    piece.slot = query - args.first_query;
    piece.keys = lengths[piece.sequence];
    if (piece.keys < 0) return piece;
    piece.parts = exact_part_count(piece.keys, args.exact_most_parts);
    const int32_t unit_parts = takes_spans ? exact_span_parts(piece.keys, args.exact_most_parts) : 1;
    piece.part = (unit - unit_start[piece.sequence]) * unit_parts;
    piece.unit_begin = piece.part;
    piece.unit_end = min(piece.parts, piece.part + unit_parts);
    piece.set_pairs();
    return piece;
  }

  // The piece after `piece`, which belongs to the block's unit number `unit`; this becomes that of the next.
  __device__ __forceinline__ ExactPiece next_piece(const Args& args, const ExactPiece& piece,
                                                   int32_t& unit) const {
    if (piece.ends_unit()) return first_piece(args, items[++unit % kItemsAhead]);
    ExactPiece next = piece;
    ++next.part;
    next.set_pairs();
    return next;
  }

  __device__ __forceinline__ int32_t units_of(const ExactPiece& piece) const {
    return unit_start[piece.sequence + 1] - unit_start[piece.sequence];
  }
};

}  // namespace allot::kernels::cuda
