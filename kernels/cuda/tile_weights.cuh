// Turns the products of a score tile with a warp's columns into weights and statistics: the end of
// every score kernel.
#pragma once

#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/cuda/device.cuh"

namespace allot::kernels::cuda {

// Eights of keys in a score tile: the columns of one product.
inline constexpr int kTileEights = kScoreTile / 8;

// The query of a column.
struct QueryPlace {
  bool exists;
  int64_t token;  // of the launch
  int32_t head;

  // Among all [num_queries, num_q_heads].
  __device__ __forceinline__ int64_t row(const Args& args) const { return token * args.p.num_q_heads + head; }
};

// Scores of a tile: scores[r][n][e] is the product of key 8 n + 2 (lane % 4) + e with column 8 r + lane / 4.
template <int kColumnTiles>
using TileScores = float[kColumnTiles][kTileEights][2];

// `scale` brings scores to units of log2. visible(column) is how many of the tile's keys the column sees;
// store(column, vectors, stats) gets this lane's two vectors of weights, in stage order, and the tile's
// statistics, which the four lanes of a column share.
template <int kColumnTiles, class Visible, class Store>
__device__ __forceinline__ void finish_tile(TileScores<kColumnTiles>& scores, int lane, float scale,
                                            Visible visible, Store store) {
#pragma unroll
  for (int r = 0; r < kColumnTiles; ++r) {
    const int column = 8 * r + lane / 4;
    const int32_t keys = visible(column);
    if (keys < kScoreTile) {
#pragma unroll
      for (int n = 0; n < kTileEights; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          if (8 * n + lane % 4 * 2 + e >= keys) scores[r][n][e] = -INFINITY;
        }
      }
    }
    float largest = -INFINITY;
#pragma unroll
    for (int n = 0; n < kTileEights; ++n) largest = fmaxf(largest, fmaxf(scores[r][n][0], scores[r][n][1]));
    largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, 2));
    // A tile this column does not see keeps weights of zero.
    const float shift = largest == -INFINITY ? 0.0f : largest * scale;
    uint32_t packed[kTileEights];
    float sum = 0;
#pragma unroll
    for (int n = 0; n < kTileEights; ++n) {
      const __half2 pair = __floats2half2_rn(fast_exp2(fmaf(scores[r][n][0], scale, -shift)),
                                             fast_exp2(fmaf(scores[r][n][1], scale, -shift)));
      const float2 rounded = __half22float2(pair);
      sum += rounded.x + rounded.y;
      packed[n] = *reinterpret_cast<const uint32_t*>(&pair);
    }
    sum += __shfl_xor_sync(kFullWarp, sum, 1);
    sum += __shfl_xor_sync(kFullWarp, sum, 2);
    const uint4 vectors[2] = {{packed[0], packed[1], packed[2], packed[3]},
                              {packed[4], packed[5], packed[6], packed[7]}};
    store(column, vectors, TileStats{largest * scale, sum});
  }
}

}  // namespace allot::kernels::cuda
