// What every block of a score kernel works out for itself about the batch: which sequences break their
// bounds, and where each one's work begins in the list of the whole batch.
#pragma once

#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/sequences.cuh"

namespace allot::kernels::cuda {

// Exclusive prefix sum of a count a sequence, into a shared array of batch + 1. A batch that one warp can
// hold is summed by every warp for itself, all writing the same numbers: no warp waits for another.
template <class Count>
__device__ __forceinline__ void prefix_sum(int32_t batch, int32_t* start, int32_t* scratch, Count count) {
  const bool alone = batch <= 32;
  const int threads = alone ? 32 : static_cast<int>(blockDim.x);
  const int thread = static_cast<int>(threadIdx.x) % threads;
  const int lane = thread % 32;
  const int each = (batch + threads - 1) / threads;
  const int begin = min(batch, thread * each);
  const int end = min(batch, begin + each);
  int32_t sum = 0;
#pragma unroll 1
  for (int b = begin; b < end; ++b) {
    const int32_t own = count(b);
    if (!alone) start[b] = own;
    sum += own;
  }
  int32_t inclusive = sum;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const int32_t below = __shfl_up_sync(kFullWarp, inclusive, d);
    if (lane >= d) inclusive += below;
  }
  if (alone) {
    if (lane < batch) start[lane + 1] = inclusive;
    if (lane == 0) start[0] = 0;
    __syncwarp();
    return;
  }
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

// Largest b with start[b] <= x; start rises, start[0] = 0 <= x < start[count].
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
                                                : tile_count(s.length, args.p.tile);
  record_fault(args, fault, b, value, limit);
}

// A warp's share of work: consecutive score tiles of one sequence, KV head and block of queries.
struct Segment {
  int32_t sequence;
  int32_t kv_head;
  int32_t first_query;  // of the pass
  int32_t queries;
  int32_t first_tile;
  int32_t last_tile;  // exclusive
};

}  // namespace allot::kernels::cuda
