// Turns the products of a score tile with a warp's columns into weights and statistics: the end of every
// score kernel.
#pragma once

#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/cuda/device.cuh"

namespace allot::kernels::cuda {

// `scores[n][i]` are the products of stage i with column tile n in the layout of multiply_accumulate, of keys
// 16 i + 2 row + {0, 1} with columns 2 quad and 2 quad + 1, where row = lane / 4 and quad = lane % 4. `scale`
// brings them to units of log2. visible(column) is how many of the tile's keys the column sees; store(column,
// packed, stats) gets this lane's eight weights, positions 8 row .. 8 row + 8 in stage order, and the tile's
// statistics, which all rows share.
template <int kColumnTiles, class Visible, class Store>
__device__ __forceinline__ void finish_tile(float (&scores)[kColumnTiles][kScoreTile / kStageKeys][4],
                                            int row, int quad, float scale, Visible visible, Store store) {
  constexpr int kStages = kScoreTile / kStageKeys;
#pragma unroll
  for (int n = 0; n < kColumnTiles; ++n) {
#pragma unroll
    for (int side = 0; side < 2; ++side) {
      const int column = 8 * n + 2 * quad + side;
      const int32_t keys = visible(column);
      float largest = -INFINITY;
#pragma unroll
      for (int i = 0; i < kStages; ++i) {
        const int key = kStageKeys * i + 2 * row;
        if (key >= keys) scores[n][i][side] = -INFINITY;
        if (key + 1 >= keys) scores[n][i][2 + side] = -INFINITY;
        largest = fmaxf(largest, fmaxf(scores[n][i][side], scores[n][i][2 + side]));
      }
#pragma unroll
      for (int d = 4; d < 32; d *= 2) largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, d));
      // A tile this query does not see keeps weights of zero.
      const float shift = largest == -INFINITY ? 0.0f : largest * scale;
      uint32_t packed[kStages];
      float sum = 0;
#pragma unroll
      for (int i = 0; i < kStages; ++i) {
        const __half2 pair = __floats2half2_rn(fast_exp2(fmaf(scores[n][i][side], scale, -shift)),
                                               fast_exp2(fmaf(scores[n][i][2 + side], scale, -shift)));
        const float2 rounded = __half22float2(pair);
        sum += rounded.x + rounded.y;
        packed[i] = *reinterpret_cast<const uint32_t*>(&pair);
      }
#pragma unroll
      for (int d = 4; d < 32; d *= 2) sum += __shfl_xor_sync(kFullWarp, sum, d);
      store(column, uint4{packed[0], packed[1], packed[2], packed[3]}, TileStats{largest * scale, sum});
    }
  }
}

}  // namespace allot::kernels::cuda
