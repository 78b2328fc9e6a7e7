// The order in which a batch's sequences are handed out where each has a few warps at most, one after
// another.
#pragma once

#include <cstdint>

#include "kernels/cuda/args.h"
#include "kernels/cuda/batch_index.cuh"
#include "kernels/cuda/device.cuh"

namespace allot::kernels::cuda {

// By length, in classes of which the longest comes first, since a long row that is begun last would end the
// launch alone. Within a class sequences stay in order, so all blocks write the same.
class LengthOrder {
  static constexpr int kClasses = 8;

 public:
  // Numbers of shared memory that a block of `threads` threads needs: one for each class and thread and one
  // more, and one for each warp.
  __host__ __device__ static constexpr int shared_numbers(int threads) {
    return kClasses * threads + 1 + threads / 32;
  }

  // Writes the order of the launch's sequences to `order`; null where it is their own, since none is shorter
  // than half of the longest that the launch may have. Bulk copies may overwrite the shared memory
  // afterwards. All threads of the block call it.
  static __device__ __forceinline__ const int32_t* write(const Args& args, int32_t* shared, int32_t* order) {
    const int threads = static_cast<int>(blockDim.x);
    const int thread = static_cast<int>(threadIdx.x);
    const auto batch = static_cast<int32_t>(args.p.batch);
    const int32_t each = (batch + threads - 1) / threads;
    const int32_t begin = min(batch, thread * each);
    const int32_t end = min(batch, begin + each);
    const int32_t most = score_tiles(args.max_length);
    const auto missing = [&](int32_t b) {
      return most - score_tiles(min(max(args.p.lengths[b], 0), args.max_length));
    };
    bool even = true;
#pragma unroll 1
    for (int32_t b = begin; b < end; ++b) even &= 2 * missing(b) <= most;
    if (__syncthreads_and(even)) return nullptr;
    int32_t* const counts = shared;
    int32_t* const of_warps = counts + kClasses * threads + 1;
    // Of the thread's sequences in the class of sequence `b`: how many, and then where the next one goes.
    const auto count_of = [&](int32_t b) -> int32_t& {
      return counts[missing(b) * kClasses / (most + 1) * threads + thread];
    };
#pragma unroll
    for (int c = 0; c < kClasses; ++c) counts[c * threads + thread] = 0;
#pragma unroll 1
    for (int32_t b = begin; b < end; ++b) ++count_of(b);
    __syncthreads();
    block_prefix_sum(kClasses * threads, counts, of_warps, [&](int32_t i) { return counts[i]; });
#pragma unroll 1
    for (int32_t b = begin; b < end; ++b) order[count_of(b)++] = b;
    __syncthreads();
    let_copies_overwrite();
    return order;
  }
};

}  // namespace allot::kernels::cuda
