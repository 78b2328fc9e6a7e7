// The kernels that decode short rows in one launch (short_decode_kernel.cuh), by their parameters.
#pragma once

#include <cstdint>

#include "kernels/attention.h"
#include "kernels/cuda/args.h"

namespace allot::kernels::cuda {

// A block of it has up to kMostShortWarps warps, each with shared memory of its own.
inline constexpr int kMostShortWarps = 12;
struct ShortDecodeKernel {
  void (*function)(Args) = nullptr;
  int32_t fewest_warps = 0;  // of a block, with fewer of which two kernels are faster
  // Dynamic shared memory of a warp for rows of up to `tiles` score tiles in `group` heads.
  int64_t (*warp_bytes)(int32_t tiles, int32_t group) = nullptr;
};

// Of iid, strat, sys and threshold, for groups of up to eight heads; empty for other estimators.
ShortDecodeKernel short_decode_kernel_bfloat16(Estimator estimator, int32_t head_dim);
ShortDecodeKernel short_decode_kernel_float16(Estimator estimator, int32_t head_dim);

}  // namespace allot::kernels::cuda
