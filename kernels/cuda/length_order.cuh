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
struct LengthOrder {
  static constexpr int kClasses = 8;

  // Writes the order of the launch's sequences to `order`; null where it is their own, since none is shorter
  // than half of the longest that the launch may have. `counts` is shared memory for kClasses numbers a
  // thread and one more, `scratch` for one a warp; bulk copies may overwrite both afterwards. All threads of
  // the block call it.
  static __device__ __forceinline__ const int32_t* write(const Args& args, int32_t* counts, int32_t* scratch,
                                                         int32_t* order) {
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
    // Of the thread's sequences in the class of sequence `b`: how many, and then where the next one goes.
    const auto count_of = [&](int32_t b) -> int32_t& {
      return counts[missing(b) * kClasses / (most + 1) * threads + thread];
    };
#pragma unroll
    for (int c = 0; c < kClasses; ++c) counts[c * threads + thread] = 0;
#pragma unroll 1
    for (int32_t b = begin; b < end; ++b) ++count_of(b);
    __syncthreads();
    block_prefix_sum(kClasses * threads, counts, scratch, [&](int32_t i) { return counts[i]; });
#pragma unroll 1
    for (int32_t b = begin; b < end; ++b) order[count_of(b)++] = b;
    __syncthreads();
    let_copies_overwrite();
    return order;
  }
};

}  // namespace allot::kernels::cuda
