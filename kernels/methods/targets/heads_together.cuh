// TargetSelection for several heads of a group at once, for short rows with few samples: each has as many
// lanes of a warp as suffice for two score tiles or a sample each. Sums are formed in the order in which the
// warp would form them for one head, so they have the same bits.
#pragma once

#include "kernels/methods/targets/value_kernel.cuh"

namespace allot::kernels::cuda {

class TargetsOfHeads {
 public:
  // Lanes of a head, a power of two; 32 where heads are better served one by one.
  __device__ __forceinline__ static int32_t lanes_of_head(int32_t tiles, int32_t samples) {
    const int32_t needed = max((tiles + 1) / 2, samples);
    return needed <= 8 ? 8 : needed <= 16 ? 16 : 32;
  }
  // Dynamic shared memory for rows of up to `tiles` score tiles: the CDFs of up to four heads of 16 tiles, or
  // two of 32.
  __host__ __device__ static constexpr int64_t shared_bytes(int32_t tiles) {
    return (tiles < 16 ? tiles : 16) * int64_t{4 * sizeof(double)};
  }

  // `row` is that of the lane's head, whether the lane `has_head` or not. All lanes of a warp call it.
  __device__ __forceinline__ TargetsOfHeads(const Args& args, const ValueRow& row, bool has_head,
                                            int32_t lanes, int lane, double* cdfs) {
    const int32_t own = lane % lanes;  // place in the head
    const int32_t begin = 2 * own;
    TileStats held[2] = {{-INFINITY, 0}, {-INFINITY, 0}};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (begin + i < row.tiles) held[i] = row.stats[begin + i];
    }
    float largest = fmaxf(held[0].max, held[1].max);
#pragma unroll 1
    for (int32_t d = lanes / 2; d > 0; d /= 2)
      largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, d));
    float masses[2];
    double sum = 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      masses[i] = held[i].sum * tile_scale(held[i], largest);
      if (begin + i < row.tiles) sum += static_cast<double>(masses[i]);
    }
    double inclusive = sum;
#pragma unroll 1
    for (int32_t d = 1; d < lanes; d *= 2) {
      const double below = __shfl_up_sync(kFullWarp, inclusive, d, lanes);
      if (own >= d) inclusive += below;
    }
    const double total = __shfl_sync(kFullWarp, inclusive, lanes - 1, lanes);
    double* const cdf = cdfs + lane / lanes * row.tiles;
    double reached = inclusive - sum;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      reached += static_cast<double>(masses[i]);
      if (has_head && begin + i < row.tiles) cdf[begin + i] = reached;
    }
    __syncwarp();
    if (has_head && own < row.budget && isfinite(total))
      value_row_ = drawn_entry<1>(args, row, cdf, largest, target_of(args, row, own) * total, 0).row;
  }

  // That the lane has drawn for its head; kNoRow where weights are not finite.
  __device__ __forceinline__ uint32_t value_row() const {
    return value_row_;
  }

 private:
  uint32_t value_row_ = kNoRow;
};

}  // namespace allot::kernels::cuda
