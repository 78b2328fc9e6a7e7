// The sizes of a query's value rows in a group whose heads read them together
// (kernels/methods/shared/method.h): the sum of a row's probabilities in the heads, of single rows and of
// whole score tiles. Where the method says so, times the norms of its values.
#pragma once

#include "kernels/cuda/value_row.cuh"

namespace allot::kernels::cuda {

// What the heads of a group see of a query. `head`, `stats` and `weights` are those of its first head; the
// others follow.
struct GroupRow : ValueRow {
  int32_t query;  // of the pass
  int32_t heads;
  int32_t row_tiles;            // from a head to the next
  int64_t wanted;               // rows that the budget asks for
  const NormStats* norm_stats;  // as `stats`, where norms count

  __device__ __forceinline__ TileStats stats_of(int32_t head, int32_t tile) const {
    return stats[int64_t{head} * row_tiles + tile];
  }
  __device__ __forceinline__ NormStats norm_stats_of(int32_t head, int32_t tile) const {
    return norm_stats[int64_t{head} * row_tiles + tile];
  }
  __device__ __forceinline__ const uint16_t* weights_of(int32_t head, int32_t tile) const {
    return weights + (int64_t{head} * row_tiles + tile) * kScoreTile;
  }
};

// Whether the sizes of rows take in the norms of their values.
__device__ __forceinline__ bool norms_count(const Args& args) {
  return args.p.value_norms != nullptr;
}

// The probability of a weight w in tile t of a head is w * exp2(max of t - largest) * inverse_total.
struct HeadScale {
  float largest;  // score, in units of log2
  float inverse_total;
};

// Whether a row of that size is read surely; the kernel that finds tau and the one that reads must agree.
__device__ __forceinline__ bool keeps_row(float size, float tau) {
  return size > 0 && size >= tau;
}

class GroupSizes {
 public:
  // Tiles that a warp looks into at once.
  static constexpr int kQuad = 32 / kTileLanes;

  // `scales` are those of the group's heads.
  __device__ __forceinline__ GroupSizes(const Args& args, const GroupRow& row, const HeadScale* scales,
                                        int lane)
      : args_(args), row_(row), scales_(scales), part_(lane % kTileLanes) {}

  // The scale of a head, in every lane of the warp; all of them call together. Not finite where a score is
  // not.
  __device__ __forceinline__ static HeadScale scale_of_head(const GroupRow& row, int32_t head, int lane) {
    constexpr int kHeld = 4;
    float largest = kLow;
    double sum = 0;
#pragma unroll 1
    for (int32_t first = lane; first < row.tiles; first += 32 * kHeld) {
      TileStats held[kHeld];
      float next = largest;
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        const int32_t t = first + 32 * i;
        held[i] = t < row.tiles ? row.stats_of(head, t) : TileStats{-INFINITY, 0};
        next = fmaxf(next, held[i].max);
      }
      float more = 0;
#pragma unroll
      for (int i = 0; i < kHeld; ++i) more = fmaf(held[i].sum, tile_scale(held[i], next), more);
      sum = sum * static_cast<double>(fast_exp2(largest - next)) + static_cast<double>(more);
      largest = next;
    }
    float all = largest;
#pragma unroll
    for (int d = 16; d > 0; d /= 2) all = fmaxf(all, __shfl_xor_sync(kFullWarp, all, d));
    sum *= static_cast<double>(fast_exp2(largest - all));
#pragma unroll
    for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(kFullWarp, sum, d);
    return {all, static_cast<float>(1 / sum)};
  }

  // By what a head's weights in a tile become probabilities.
  __device__ __forceinline__ float scale_of(int32_t head, const TileStats& stats) const {
    return tile_scale(stats, scales_[head].largest) * scales_[head].inverse_total;
  }

  struct Tile {
    float mass;   // sum of the sizes
    float bound;  // no size is larger
  };
  __device__ __forceinline__ Tile tile_of(int32_t tile) const {
    Tile sums = {0, 0};
    for_each_head([&](int32_t head, bool used) {
      const TileStats stats = row_.stats_of(head, tile);
      const float scale = used ? scale_of(head, stats) : 0.0f;
      // Weights are at most 1.
      const NormStats norms = norms_count(args_) ? row_.norm_stats_of(head, tile) : NormStats{stats.sum, 1};
      sums.mass = fmaf(norms.sum, scale, sums.mass);
      sums.bound = fmaf(norms.max, scale, sums.bound);
    });
    sums.bound *= 1.0001f;  // the sizes are rounded
    return sums;
  }

  // The sizes of this lane's keys of some tiles; 0 in those that are not wanted. All is asked for at once.
  // kNorms: whether norms may count.
  template <int kTiles, bool kNorms = true>
  __device__ __forceinline__ void of(const int32_t (&tiles)[kTiles], const bool (&wanted)[kTiles],
                                     float (&sizes)[kTiles][8]) const {
#pragma unroll
    for (int i = 0; i < kTiles; ++i)
#pragma unroll
      for (int k = 0; k < 8; ++k) sizes[i][k] = 0;
    EightNorms norms[kTiles];
#pragma unroll
    for (int i = 0; i < kTiles; ++i) norms[i] = kNorms && wanted[i] ? norms_of(tiles[i]) : EightNorms{};
    constexpr int kHeads = 4;
#pragma unroll 1
    for (int32_t first = 0; first < row_.heads; first += kHeads) {
      TileStats stats[kTiles][kHeads];
      uint32_t pairs[kTiles][kHeads][4];
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
#pragma unroll
        for (int h = 0; h < kHeads; ++h) {
          stats[i][h] = {-INFINITY, 0};
#pragma unroll
          for (int k = 0; k < 4; ++k) pairs[i][h][k] = 0;
          if (!wanted[i] || first + h >= row_.heads) continue;
          stats[i][h] = row_.stats_of(first + h, tiles[i]);
          const auto* all = reinterpret_cast<const uint32_t*>(row_.weights_of(first + h, tiles[i]));
#pragma unroll
          for (int k = 0; k < 4; ++k) pairs[i][h][k] = all[stage_position(8 * part_ + 2 * k) / 2];
        }
      }
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
#pragma unroll
        for (int h = 0; h < kHeads; ++h) {
          const float scale = scale_of(min(first + h, row_.heads - 1), stats[i][h]);
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            const float2 pair = unpack<__half>(pairs[i][h][k]);
            sizes[i][2 * k] = fmaf(pair.x, scale, sizes[i][2 * k]);
            sizes[i][2 * k + 1] = fmaf(pair.y, scale, sizes[i][2 * k + 1]);
          }
        }
      }
    }
    if (kNorms && norms_count(args_)) {
#pragma unroll
      for (int i = 0; i < kTiles; ++i) multiply(sizes[i], norms[i]);
    }
  }

  // The sizes of this lane's keys in tile `tile`, of a row of no more tiles than a warp looks into at once,
  // and the scales of the heads, to shared memory. All lanes of the warp call together.
  __device__ __forceinline__ void of_short_row(int32_t tile, HeadScale* scales, float (&sizes)[8]) const {
#pragma unroll
    for (int k = 0; k < 8; ++k) sizes[k] = 0;
    const bool wanted = tile < row_.tiles;
    const int32_t place = wanted ? tile : 0;
    constexpr int kHeads = 4;
#pragma unroll 1
    for (int32_t first = 0; first < row_.heads; first += kHeads) {
      TileStats stats[kHeads];
      uint32_t pairs[kHeads][4];
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        const int32_t head = min(first + h, row_.heads - 1);
        stats[h] = row_.stats_of(head, place);
        if (!wanted) stats[h] = {-INFINITY, 0};
        const auto* all = reinterpret_cast<const uint32_t*>(row_.weights_of(head, place));
#pragma unroll
        for (int k = 0; k < 4; ++k) pairs[h][k] = all[stage_position(8 * part_ + 2 * k) / 2];
      }
#pragma unroll
      for (int h = 0; h < kHeads; ++h) {
        if (first + h >= row_.heads) break;
        float largest = fmaxf(kLow, stats[h].max);
        largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, 2 * kTileLanes));
        largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, kTileLanes));
        const float own = tile_scale(stats[h], largest);
        float sum = stats[h].sum * own;
        sum += __shfl_xor_sync(kFullWarp, sum, 2 * kTileLanes);
        sum += __shfl_xor_sync(kFullWarp, sum, kTileLanes);
        const HeadScale scale = {largest, 1 / sum};
        if (tile == 0 && part_ == 0) scales[first + h] = scale;
        const float factor = wanted ? own * scale.inverse_total : 0.0f;
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const float2 pair = unpack<__half>(pairs[h][k]);
          sizes[2 * k] = fmaf(pair.x, factor, sizes[2 * k]);
          sizes[2 * k + 1] = fmaf(pair.y, factor, sizes[2 * k + 1]);
        }
      }
    }
    // Not before: they would take registers that hold other groups of the multiprocessor.
    if (norms_count(args_) && wanted) multiply(sizes, norms_of(tile));
  }

 private:
  static constexpr float kLow = -1e30f;  // a finite number below all scores

  // The norms of this lane's keys of a tile.
  struct EightNorms {
    float4 low = {};
    float4 high = {};
  };
  // Asks for them, where norms count; 0 behind the row's last tile.
  __device__ __forceinline__ EightNorms norms_of(int32_t tile) const {
    EightNorms norms;
    const int32_t first = tile * kScoreTile + 8 * part_;
    if (!norms_count(args_) || first >= row_.keys) return norms;
    // Eight keys lie in one page.
    const auto* both =
        reinterpret_cast<const float4*>(args_.p.value_norms + value_row_of(args_, row_, first));
    norms.low = both[0];
    norms.high = both[1];
    return norms;
  }
  __device__ __forceinline__ static void multiply(float (&sizes)[8], const EightNorms& norms) {
    const float eight[8] = {norms.low.x,  norms.low.y,  norms.low.z,  norms.low.w,
                            norms.high.x, norms.high.y, norms.high.z, norms.high.w};
    // Behind the last key lies anything.
#pragma unroll
    for (int k = 0; k < 8; ++k) sizes[k] = sizes[k] > 0 ? sizes[k] * eight[k] : 0;
  }

  // Calls use(head, used) for every head, four at a time: where `used` is false it is one too many.
  template <class Use>
  __device__ __forceinline__ void for_each_head(Use use) const {
#pragma unroll 1
    for (int32_t first = 0; first < row_.heads; first += 4) {
#pragma unroll
      for (int i = 0; i < 4; ++i) use(min(first + i, row_.heads - 1), first + i < row_.heads);
    }
  }

  const Args& args_;
  const GroupRow& row_;
  const HeadScale* scales_;
  const int part_;  // which of a tile's lanes this is
};

}  // namespace allot::kernels::cuda
