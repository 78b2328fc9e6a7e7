// What every block of a score kernel computes for itself about the batch: which sequences break their bounds,
// and where each one's work begins in the list of the whole batch.
#pragma once

#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/sequences.cuh"

namespace allot::kernels::cuda {

// Inclusive prefix sum over the lanes of a warp.
__device__ __forceinline__ int32_t warp_inclusive_sum(int32_t x, int lane) {
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const int32_t below = __shfl_up_sync(kFullWarp, x, d);
    if (lane >= d) x += below;
  }
  return x;
}

// Sequences that one warp can index by itself.
inline constexpr int32_t kWarpBatch = 32;

// Exclusive prefix sum of one count per sequence, for at most kWarpBatch sequences, into an array of batch +
// 1 elements that belongs to the warp, so that no warp waits for another.
template <class Count>
__device__ __forceinline__ void warp_prefix_sum(int32_t batch, int32_t* start, int lane, Count count) {
  const int32_t inclusive = warp_inclusive_sum(lane < batch ? count(lane) : 0, lane);
  if (lane == 0) start[0] = 0;
  if (lane < batch) start[lane + 1] = inclusive;
  __syncwarp();
}

// The same for any batch, into an array that the block shares; `scratch` has one element per warp.
template <class Count>
__device__ __forceinline__ void block_prefix_sum(int32_t batch, int32_t* start, int32_t* scratch,
                                                 Count count) {
  const int threads = static_cast<int>(blockDim.x);
  const int thread = static_cast<int>(threadIdx.x);
  const int lane = thread % 32;
  const int each = (batch + threads - 1) / threads;
  const int begin = min(batch, thread * each);
  const int end = min(batch, begin + each);
  int32_t sum = 0;
#pragma unroll 1
  for (int b = begin; b < end; ++b) {
    start[b] = count(b);
    sum += start[b];
  }
  const int32_t inclusive = warp_inclusive_sum(sum, lane);
  if (lane == 31) scratch[thread / 32] = inclusive;
  __syncthreads();
  int32_t before = inclusive - sum;
#pragma unroll 1
  for (int w = 0; w < thread / 32; ++w) before += scratch[w];
#pragma unroll 1
  for (int b = begin; b < end; ++b) {
    const int32_t own = start[b];
    start[b] = before;
    before += own;
  }
  if (thread == threads - 1) start[batch] = before;  // the last thread's range ends the batch or is empty
  __syncthreads();
}

// Largest b with start[b] <= x; start is ascending, start[0] = 0 <= x < start[count].
__device__ __forceinline__ int32_t last_at_or_below(const int32_t* start, int32_t count, int32_t x) {
  int32_t low = 0;
  int32_t high = count;
  while (high - low > 1) {
    const int32_t middle = (low + high) / 2;
    if (start[middle] <= x) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

__device__ __forceinline__ void report_fault(const Args& args, FaultCode fault, int32_t b,
                                             const PassSequence& s) {
  if (fault == kFaultNone) return;
  const bool of_queries = fault == kFaultQueries;
  const bool of_length = fault == kFaultLength;
  const int32_t value = of_queries ? s.queries : of_length ? s.length : budget_of(args, b);
  const int32_t limit = of_queries              ? args.max_queries
                        : of_length             ? args.max_length
                        : fault == kFaultBudget ? args.max_budget
                                                : tile_count(s.length, args.p.method.tile);
  record_fault(args, fault, b, value, limit);
}

}  // namespace allot::kernels::cuda
