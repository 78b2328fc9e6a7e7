// One row of the value kernel: where its weights and statistics lie, which keys it sees, and the list of
// entries (a value row and its factor) that selection fills and the gather consumes.
#pragma once

#include <cstdint>

#include "base/philox.h"
#include "kernels/cuda/args.h"
#include "kernels/cuda/row_group.cuh"
#include "kernels/cuda/sequences.cuh"
#include "kernels/cuda/stage_order.h"

namespace allot::kernels::cuda {

// A value row, counted in rows of head_dim elements from value_pages, and its factor; 0 where nothing is
// drawn.
struct Entry {
  uint32_t row;
  float weight;
};

// The samples that one score tile contributes to a batch of entries.
struct TileDraw {
  int32_t tile;
  int32_t first;  // slot of the tile's first entry, counted over the row
  int32_t count;  // samples drawn from the tile
  float phase;    // fraction of a sample already passed where the tile begins; for targets, the target itself
  float rate;     // samples per unit of weight
  float weight;   // of one sample
};

struct ValueRow {
  int32_t sequence;
  int32_t head;
  int32_t kv_head;
  int32_t keys;    // visible
  int32_t tiles;   // score tiles of the visible keys
  int32_t budget;  // samples, or kDenseBudget
  const TileStats* stats;
  const uint16_t* weights;
  DrawRow draws;  // unless the selection draws nothing

  // Entries of the row: its samples, or all keys.
  __device__ __forceinline__ int32_t entries() const { return budget == kDenseBudget ? keys : budget; }
};

// Eight lanes share a score tile, eight keys each.
inline constexpr int kTileLanes = 8;
// Half precision weights are multiples of 2^-24 and at most 1: as integers they add exactly, in any order.
inline constexpr float kWeightUnit = 0x1p-24f;

// This lane's keys 8 * part .. 8 * part + 8 of a tile, in units of kWeightUnit.
__device__ __forceinline__ void load_weights(const ValueRow& row, int32_t tile, int part,
                                             int32_t (&units)[8]) {
  const auto* pairs = reinterpret_cast<const __half2*>(row.weights + int64_t{tile} * kScoreTile);
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float2 pair = __half22float2(pairs[stage_position(8 * part + 2 * k) / 2]);
    units[2 * k] = static_cast<int32_t>(pair.x * 0x1p24f);
    units[2 * k + 1] = static_cast<int32_t>(pair.y * 0x1p24f);
  }
}

// Row of key 8 * part of a tile in value_pages; the lane's eight keys lie in one page. Keys beyond the
// visible ones have no page; they are never drawn.
__device__ __forceinline__ uint32_t first_value_row(const Args& args, const ValueRow& row, int32_t tile,
                                                    int part) {
  const int32_t key = tile * kScoreTile + 8 * part;
  if (key >= row.keys) return 0;
  const int32_t entry = key / args.p.page_size;
  const int32_t page = args.p.page_table[int64_t{row.sequence} * args.p.max_pages + entry];
  return (static_cast<uint32_t>(page) * args.p.num_kv_heads + row.kv_head) * args.p.page_size +
         (key - entry * args.p.page_size);
}

// Exclusive prefix sum over the eight lanes of a tile, and their sum.
struct TilePrefix {
  int32_t before;
  int32_t total;
};
__device__ __forceinline__ TilePrefix tile_prefix(int32_t x, int part) {
  int32_t inclusive = x;
#pragma unroll
  for (int d = 1; d < kTileLanes; d *= 2) {
    const int32_t below = __shfl_up_sync(kFullWarp, inclusive, d, kTileLanes);
    if (part >= d) inclusive += below;
  }
  return {inclusive - x, __shfl_sync(kFullWarp, inclusive, kTileLanes - 1, kTileLanes)};
}

// The batch of entries under construction: slots [low, high) of the row.
struct Batch {
  Entry* entries;
  TileDraw* draws;
  int32_t* draw_count;
  int32_t low;
  int32_t high;

  // Lists a tile with entries in the batch. The list's order does not matter: entries have fixed slots.
  __device__ __forceinline__ void list(const TileDraw& draw, int32_t entries_of_tile) const {
    if (entries_of_tile > 0 && draw.first < high && draw.first + entries_of_tile > low) {
      draws[atomicAdd(draw_count, 1)] = draw;
    }
  }
  // Puts `count` samples of one key at slot `first`; the key is read once for all of them.
  __device__ __forceinline__ void put(int32_t first, int32_t count, uint32_t row, float weight) const {
    const int32_t begin = max(first, low);
    const int32_t end = min(first + count, high);
    if (begin < end) entries[begin - low] = {row, weight * static_cast<float>(end - begin)};
  }
};

// Weights of the row's score tiles relative to the row's largest score, dealt to the threads in contiguous
// runs.
template <int kWarps>
struct TileMasses {
  int32_t begin;  // this thread's tiles
  int32_t end;
  float largest;  // score, in units of log2
  typename RowGroup<kWarps>::Prefix prefix;

  __device__ __forceinline__ TileMasses(RowGroup<kWarps>& group, const ValueRow& row) {
    const int32_t each = (row.tiles + group.kThreads - 1) / group.kThreads;
    begin = min(row.tiles, group.thread() * each);
    end = min(row.tiles, begin + each);
    float own = -INFINITY;
#pragma unroll 4
    for (int32_t t = begin; t < end; ++t) own = fmaxf(own, row.stats[t].max);
    largest = group.max(own);
    double sum = 0;
#pragma unroll 1
    for (int32_t t = begin; t < end; ++t) sum += static_cast<double>(mass(row, t));
    prefix = group.prefix(sum);
  }

  __device__ __forceinline__ float tile_scale(const ValueRow& row, int32_t tile) const {
    return fast_exp2(row.stats[tile].max - largest);
  }
  __device__ __forceinline__ float mass(const ValueRow& row, int32_t tile) const {
    return row.stats[tile].sum * tile_scale(row, tile);
  }
  __device__ __forceinline__ double total() const {
    return prefix.total;
  }
};

}  // namespace allot::kernels::cuda
