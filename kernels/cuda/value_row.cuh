// One row of the value kernel: where its weights and statistics lie, which keys it sees, the CDF of its score
// tiles, and the search for the key a target picks.
#pragma once

#include <cstdint>
#include <type_traits>

#include "base/philox.h"
#include "kernels/cuda/args.h"
#include "kernels/cuda/row_group.cuh"
#include "kernels/cuda/sequences.cuh"
#include "kernels/cuda/stage_order.h"

namespace allot::kernels::cuda {

// A value row, counted in rows of head_dim elements from value_pages, and its factor.
struct Entry {
  uint32_t row;
  float weight;
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
  DrawRow draws;  // unless all keys are wanted
  // Of the group, where the weights lie in shared memory and their vectors are swapped (stage_order.h).
  int32_t swapping_head = kNotSwapped;

  static constexpr int32_t kNotSwapped = -1;

  // Entries of the row: its samples, or all keys.
  __device__ __forceinline__ int32_t entries() const { return budget == kDenseBudget ? keys : budget; }
  __device__ __forceinline__ int swap(int32_t tile) const {
    return swapping_head == kNotSwapped ? 0 : swap_of_tile(tile, swapping_head);
  }
};

// What a selection computes of a row, for one thread, before the row's scores are there: nothing.
struct NothingKnown {
  // Of a part of `count` entries, the one of which the thread is to know something.
  __device__ __forceinline__ static int place(int32_t /*count*/, int thread) { return thread; }
  __device__ __forceinline__ NothingKnown(const Args&, const ValueRow&, int32_t) {}
};

// Gives up the weights of `tiles` score tiles from `weights` on. All threads of the group call it, when none
// reads them any more. A few rows keep theirs: each has a multiprocessor that would discard its lines when
// all else has been done, and the next launch overwrites them in L2.
template <int kWarps>
__device__ __forceinline__ void discard_weights(const Args& args, const uint16_t* weights, int32_t tiles,
                                                const RowGroup<kWarps>& group) {
  static_assert(kScoreTile * sizeof(uint16_t) == 128, "a line a tile");
  if (args.few_rows) return;
#pragma unroll 1
  for (int32_t tile = group.thread(); tile < tiles; tile += group.kThreads)
    discard_line(weights + int64_t{tile} * kScoreTile);
}

// Row of a visible key in value_pages.
__device__ __forceinline__ uint32_t value_row_of(const Args& args, const ValueRow& row, int32_t key) {
  const int32_t entry = args.page_size.quotient(key);
  return pool_row(args, page_number(args, row.sequence, entry), row.kv_head, key, entry);
}

// The unit of the split key in a row of the pool.
template <int kHeadDim>
__device__ __forceinline__ float key_unit(const SplitKeys& split, uint32_t row) {
  return *reinterpret_cast<const float*>(
      static_cast<const char*>(split.high) + int64_t{row / kSplitBlockKeys} * split_block_bytes(kHeadDim) +
      split_unit_offset(kHeadDim, static_cast<int32_t>(row % kSplitBlockKeys)));
}

// Neighbouring lanes that search a score tile together have parts of 16 keys of it each, one after the other.
template <int kLanes>
inline constexpr int kPartsOfLane = kScoreTile / 16 / kLanes;

// The pages of a lane's parts of a score tile, asked for before its key is known: a page has 16 tokens or
// more.
template <int kLanes>
class TilePages {
  static constexpr int kParts = kPartsOfLane<kLanes>;

 public:
  __device__ __forceinline__ TilePages(const Args& args, const ValueRow& row, int32_t tile, int lane)
      : first_(args.page_size.quotient(tile * kScoreTile + 16 * kParts * lane)) {
    const int32_t last = args.page_size.quotient(row.keys - 1);
    const int32_t* const pages = args.p.page_table + int64_t{row.sequence} * args.p.max_pages;
#pragma unroll
    for (int i = 0; i < kParts; ++i) pages_[i] = pages[min(first_ + i, last)];
  }

  // Row of a visible key of these parts in value_pages.
  __device__ __forceinline__ uint32_t value_row(const Args& args, const ValueRow& row, int32_t key) const {
    const int32_t entry = args.page_size.quotient(key);
    const int32_t i = entry - first_;
    const int32_t page = i == 0   ? pages_[0]
                         : i == 1 ? pages_[1 % kParts]
                         : i == 2 ? pages_[2 % kParts]
                                  : pages_[3 % kParts];
    return pool_row(args, page, row.kv_head, key, entry);
  }

 private:
  int32_t first_;
  int32_t pages_[kParts];
};

// Asks for a row of value pages, of `row_bytes` bytes, kAtOnce lines without a test between them.
template <int kAtOnce>
__device__ __forceinline__ void ask_for_row(const void* values, uint32_t row, int32_t row_bytes) {
  const char* const first = static_cast<const char*>(values) + int64_t{row} * row_bytes;
#pragma unroll kAtOnce
  for (int32_t i = 0; i < row_bytes; i += 128) prefetch(first + i);
}

// The batch of entries under construction: slots [low, high) of the row, each of which selection writes once.
struct Batch {
  Entry* entries;
  int32_t low;
  int32_t high;
  // Where the rows of entries are asked for at once, before all entries are there: the value pages and the
  // bytes of a row.
  const void* asked = nullptr;
  int32_t row_bytes = 0;
  bool one_by_one = false;  // a thread searches for an entry alone, however few there are

  __device__ __forceinline__ void put(int32_t slot, Entry entry) const {
    entries[slot - low] = entry;
    if (asked != nullptr && entry.weight != 0) ask_for_row<1>(asked, entry.row, row_bytes);
  }
};

// Weight of a score tile's sum relative to the row's largest score.
__device__ __forceinline__ float tile_scale(const TileStats& stats, float largest) {
  return fast_exp2(stats.max - largest);
}

// Largest score of the row and the mass of its score tiles relative to it, dealt to the threads
// in contiguous runs.
template <int kWarps>
struct TileMasses {
  int32_t begin;  // this thread's tiles
  int32_t end;
  float largest;  // in units of log2
  double before;  // mass of the tiles below `begin`
  double total;

  __device__ __forceinline__ TileMasses(RowGroup<kWarps>& group, const ValueRow& row) {
    // Pairs of tiles, because a row's statistics begin at a multiple of 16 bytes.
    const int32_t each = (row.tiles + 2 * group.kThreads - 1) / (2 * group.kThreads) * 2;
    begin = min(row.tiles, group.thread() * each);
    end = min(row.tiles, begin + each);
    // The first few statistics are all asked for at once; the others, of very long rows, are read again.
    TileStats held[kHeld];
    float own = -INFINITY;
#pragma unroll
    for (int i = 0; i < kHeld; i += 2) {
      held[i] = held[i + 1] = {-INFINITY, 0};
      if (begin + i < end) {
        const float4 pair = *reinterpret_cast<const float4*>(row.stats + begin + i);
        held[i] = {pair.x, pair.y};
        if (begin + i + 1 < end) held[i + 1] = {pair.z, pair.w};
      }
      own = fmaxf(own, fmaxf(held[i].max, held[i + 1].max));
    }
#pragma unroll 4
    for (int32_t t = begin + kHeld; t < end; ++t) own = fmaxf(own, row.stats[t].max);
    largest = group.max(own);
    double sum = 0;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      masses_[i] = held[i].sum * tile_scale(held[i], largest);
      if (begin + i < end) sum += static_cast<double>(masses_[i]);
    }
#pragma unroll 1
    for (int32_t t = begin + kHeld; t < end; ++t) sum += static_cast<double>(mass(row, t));
    const auto prefix = group.prefix(sum);
    before = prefix.before;
    total = prefix.total;
  }

  __device__ __forceinline__ float mass(const ValueRow& row, int32_t tile) const {
    const TileStats stats = row.stats[tile];
    return stats.sum * tile_scale(stats, largest);
  }

  // Writes the CDF of the row's tiles; needs a barrier before others read it.
  __device__ __forceinline__ void write_cdf(const ValueRow& row, double* cdf) const {
    double sum = before;
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      sum += static_cast<double>(masses_[i]);
      if (begin + i < end) cdf[begin + i] = sum;
    }
#pragma unroll 1
    for (int32_t t = begin + kHeld; t < end; ++t) {
      sum += static_cast<double>(mass(row, t));
      cdf[t] = sum;
    }
  }

 private:
  static constexpr int kHeld = 8;  // rows of up to 128k keys by a block
  float masses_[kHeld];
};

// First of tiles [low, high] whose CDF reaches the target; the last one where rounding leaves the CDF
// short of it.
__device__ __forceinline__ int32_t find_tile(const double* cdf, int32_t low, int32_t high, double target) {
#pragma unroll 1
  while (low < high) {
    const int32_t middle = (low + high) / 2;
    if (cdf[middle] >= target) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

// The weights of a lane's parts of a score tile: word i of vector 4 v + t of the tile holds keys 32 v + 8 i +
// 2 t and one more.
template <int kLanes>
struct TileWeights {
  static constexpr int kParts = kPartsOfLane<kLanes>;
  static constexpr int kVectors = kParts == 4 ? 8 : 4;
  static constexpr int kWords = kParts == 1 ? 2 : 4;  // of a vector
  uint32_t words[kVectors][kWords];

  __device__ __forceinline__ TileWeights(const ValueRow& row, int32_t tile, int lane) {
    using Vector = std::conditional_t<kWords == 4, uint4, uint2>;
    constexpr int kOfVector = 4 / kWords;
    const auto* vectors = reinterpret_cast<const Vector*>(row.weights + int64_t{tile} * kScoreTile);
    const int swap = row.swap(tile);
#pragma unroll
    for (int r = 0; r < kVectors; ++r) {
      const Vector v = vectors[((lane / kOfVector * kVectors + r) ^ swap) * kOfVector + lane % kOfVector];
      words[r][0] = v.x;
      words[r][1] = v.y;
      if constexpr (kWords == 4) {
        words[r][2] = v.z;
        words[r][3] = v.w;
      }
    }
  }

  // Keys 16 part + 2 k of the lane's and one more; both constants, or this is a read from local memory.
  __device__ __forceinline__ uint32_t pair(int part, int k) const {
    return words[part / 2 * 4 + k % 4][part % 2 * 2 + k / 4];
  }
};

// Lanes that share a score tile, eight keys each: 8 * part .. 8 * part + 8.
inline constexpr int kTileLanes = 8;

// The weights of the eight keys of a part of a score tile.
__device__ __forceinline__ void load_eight(const ValueRow& row, int32_t tile, int part, float (&weights)[8]) {
  const auto* pairs = reinterpret_cast<const uint32_t*>(row.weights + int64_t{tile} * kScoreTile);
  const int swap = row.swap(tile) * 4;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const float2 pair = unpack<__half>(pairs[stage_position(8 * part + 2 * k) / 2 ^ swap]);
    weights[2 * k] = pair.x;
    weights[2 * k + 1] = pair.y;
  }
}

// Key (0-based in the tile) whose weight crosses `target` when `weight_of(key's weight)` is summed in
// key order; the last key of positive weight where rounding leaves the sum short. Requires target > 0
// and a positive weight. Of kLanes neighbours, which call it together, the one whose part has the key gets
// it, the others kNotHere.
inline constexpr int32_t kNotHere = -1;
template <int kLanes, class WeightOf>
__device__ __forceinline__ int32_t find_key(const TileWeights<kLanes>& tile, int lane, float target,
                                            WeightOf weight_of) {
  constexpr int kParts = kPartsOfLane<kLanes>;
  float sums[4];
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    sums[i] = 0;
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const float2 pair = unpack<__half>(tile.pair(i, k));
      sums[i] += weight_of(pair.x);
      sums[i] += weight_of(pair.y);
    }
  }
  if constexpr (kLanes > 1) {
    float of_parts[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) of_parts[i] = __shfl_sync(kFullWarp, sums[i % kParts], i / kParts, kLanes);
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[i] = of_parts[i];
  }
  // The 16 keys in which the target falls.
  const float below1 = sums[0];
  const float below2 = below1 + sums[1];
  const float below3 = below2 + sums[2];
  target = fminf(target, below3 + sums[3]);
  const int part = (target > below1) + (target > below2) + (target > below3);
  if constexpr (kLanes > 1) {
    if (part / kParts != lane) return kNotHere;
  }
  const float below = part == 0 ? 0.0f : part == 1 ? below1 : part == 2 ? below2 : below3;
  const float mass = part == 0 ? sums[0] : part == 1 ? sums[1] : part == 2 ? sums[2] : sums[3];
  target = fminf(target - below, mass);
  int32_t key = 16 * part;
  float sum = 0;
#pragma unroll
  for (int k = 0; k < 8; ++k) {
    const int own = kLanes == 1 ? part : part % kParts;
    const uint32_t word = own == 0   ? tile.pair(0, k)
                          : own == 1 ? tile.pair(1 % kParts, k)
                          : own == 2 ? tile.pair(2 % kParts, k)
                                     : tile.pair(3 % kParts, k);
    const float2 pair = unpack<__half>(word);
    sum += weight_of(pair.x);
    key += sum < target;
    sum += weight_of(pair.y);
    key += sum < target;
  }
  return key;
}

}  // namespace allot::kernels::cuda
