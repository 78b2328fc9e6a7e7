// The threads that work on one row of the value kernel: one warp where budgets are small, eight where they
// are large. Sums have a fixed order, so a row's result does not depend on scheduling.
#pragma once

#include <cstdint>

#include "kernels/cuda/device.cuh"

namespace allot::kernels::cuda {

template <int kWarps>
class RowGroup {
 public:
  static constexpr int kThreads = 32 * kWarps;

  struct Scratch {
    double sums[2][kWarps];
    float floats[kWarps];
  };

  __device__ __forceinline__ explicit RowGroup(Scratch& scratch)
      : scratch_(scratch), thread_(static_cast<int>(threadIdx.x) % kThreads) {}

  __device__ __forceinline__ int thread() const { return thread_; }
  __device__ __forceinline__ int warp() const { return thread_ / 32; }
  __device__ __forceinline__ int lane() const { return thread_ % 32; }

  __device__ __forceinline__ void sync() const {
    if constexpr (kWarps == 1) {
      __syncwarp();
    } else {
      __syncthreads();
    }
  }

  // Largest of the threads' values; call it once per row, because its scratch memory is not freed
  // for another call.
  __device__ __forceinline__ float max(float x) {
#pragma unroll
    for (int d = 16; d > 0; d /= 2) x = fmaxf(x, __shfl_xor_sync(kFullWarp, x, d));
    if constexpr (kWarps > 1) {
      if (lane() == 0) scratch_.floats[warp()] = x;
      sync();
#pragma unroll
      for (int w = 0; w < kWarps; ++w) x = fmaxf(x, scratch_.floats[w]);
    }
    return x;
  }

  struct Prefix {
    double before;  // sum of the threads below
    double total;
  };
  // Exclusive prefix sum over the threads of the row, in double.
  __device__ __forceinline__ Prefix prefix(double x) {
    double inclusive = x;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const double below = __shfl_up_sync(kFullWarp, inclusive, d);
      if (lane() >= d) inclusive += below;
    }
    double total = __shfl_sync(kFullWarp, inclusive, 31);
    double base = 0;
    if constexpr (kWarps > 1) {
      // Two sets are used in turn: a thread can be one call ahead of another, but not two.
      double* const sums = scratch_.sums[turn_];
      turn_ ^= 1;
      if (lane() == 31) sums[warp()] = inclusive;
      sync();
      total = 0;
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        if (w == warp()) base = total;
        total += sums[w];
      }
    }
    return {base + inclusive - x, total};
  }

  // Exclusive prefix sum of counts.
  __device__ __forceinline__ int32_t prefix(int32_t x) {
    return static_cast<int32_t>(prefix(static_cast<double>(x)).before);
  }
  __device__ __forceinline__ int32_t sum(int32_t x) {
    return static_cast<int32_t>(prefix(static_cast<double>(x)).total);
  }

 private:
  Scratch& scratch_;
  const int thread_;
  int turn_ = 0;
};

}  // namespace allot::kernels::cuda
