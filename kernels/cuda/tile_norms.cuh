// What the sizes of value rows take from the norms of their values (`joint` with value-norms,
// kernels/methods/shared/method.h): the CDF of such sizes does not follow from the sums of the weights, so
// the score kernels leave more statistics of their tiles.
#pragma once

#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/sequences.cuh"
#include "kernels/cuda/tile_weights.cuh"

namespace allot::kernels::cuda {

// Where the norm of the first of eight keys lies, in value_norms; 0 behind the last of `keys` keys. Eight
// keys lie in one page.
__device__ __forceinline__ uint32_t norm_place(const Args& args, int32_t sequence, int32_t kv_head,
                                               int32_t first, int32_t keys) {
  if (first >= keys) return 0;
  const int32_t entry = args.page_size.quotient(first);
  const int32_t page = page_number(args, sequence, entry);
  // A page outside the pool is a fault, which makes the row NaN.
  const bool known = page >= 0 && page < args.p.num_pages;
  return pool_row(args, known ? page : 0, kv_head, first, entry);
}

// The norms of a score tile's values that belong to a lane's scores (TileScores): those of keys 8 n + 2 (lane
// % 4) + e.
class TileNorms {
 public:
  // Asks for them, of columns that see no key from `keys` on; they are waited for where they are first used.
  // Lane `first_lane` + n has the norm_place of the tile's keys from 8 n on in `places`. All lanes of a warp
  // call together.
  __device__ __forceinline__ void load(const float* value_norms, uint32_t places, int first_lane,
                                       int32_t tile, int32_t keys, int lane) {
#pragma unroll
    for (int n = 0; n < kTileEights; ++n) {
      const uint32_t place = __shfl_sync(kFullWarp, places, first_lane + n) + lane % 4 * 2;
      const int32_t key = tile * kScoreTile + 8 * n + lane % 4 * 2;
      norms_[n] = {0, 0};
      if (key < keys) norms_[n] = *reinterpret_cast<const float2*>(value_norms + place);
      // Behind the last key lies anything.
      if (key + 1 >= keys) norms_[n].y = 0;
    }
  }

  // Statistics of a column, from this lane's two vectors of its weights. The four lanes of the column call
  // together and all get them.
  __device__ __forceinline__ NormStats stats_of(const uint4 (&weights)[2], int lane) const {
    const uint32_t words[kTileEights] = {weights[0].x, weights[0].y, weights[0].z, weights[0].w,
                                         weights[1].x, weights[1].y, weights[1].z, weights[1].w};
    NormStats stats = {0, 0};
#pragma unroll
    for (int n = 0; n < kTileEights; ++n) {
      const float2 pair = unpack<__half>(words[n]);
      const float low = pair.x * norms_[n].x, high = pair.y * norms_[n].y;
      stats.sum += low + high;
      stats.max = fmaxf(stats.max, fmaxf(low, high));
    }
    const uint32_t column = 0xFu << lane / 4 * 4;
#pragma unroll
    for (int d = 1; d < 4; d *= 2) {
      stats.sum += __shfl_xor_sync(column, stats.sum, d);
      stats.max = fmaxf(stats.max, __shfl_xor_sync(column, stats.max, d));
    }
    return stats;
  }

 private:
  float2 norms_[kTileEights];
};

}  // namespace allot::kernels::cuda
