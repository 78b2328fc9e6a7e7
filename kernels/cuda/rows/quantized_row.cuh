// A row that a block quantises to 8 bits (fp8.h): its largest magnitude and its elements.
#pragma once

#include <cuda_fp8.h>

#include <cstdint>

#include "kernels/cuda/device.cuh"
#include "kernels/fp8.h"
#include "kernels/split_keys.h"

namespace allot::kernels::cuda {

inline constexpr uint32_t kMaxQuantizeThreads = 512;

// Largest over the block, the same in every thread; NaN where one is.
__device__ inline float largest_of_block(float x) {
  __shared__ float of_warps[kMaxQuantizeThreads / 32];
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    x = larger_magnitude(x, __shfl_xor_sync(kFullWarp, x, offset));
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = x;
  __syncthreads();
  x = threadIdx.x % 32 < blockDim.x / 32 ? of_warps[threadIdx.x % 32] : 0;
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2)
    x = larger_magnitude(x, __shfl_xor_sync(kFullWarp, x, offset));
  return x;
}

// Stores N elements as 8 bits; zeros where the row has no scale. N is 1 or a multiple of 4, and `to` is then
// aligned to N bytes.
template <int N>
__device__ __forceinline__ void store_quantized(uint8_t* to, const float (&x)[N], const Fp8Scale& scale) {
  const bool finite = scale.scale == scale.scale;
  if constexpr (N == 1) {
    *to = finite ? __nv_cvt_float_to_fp8(x[0] * scale.inverse, __NV_SATFINITE, __NV_E4M3) : uint8_t{0};
  } else {
    uint32_t words[N / 4];
#pragma unroll
    for (int j = 0; j < N; j += 4) {
      const auto pair = [&](int k) {
        return uint32_t{__nv_cvt_float2_to_fp8x2({x[k] * scale.inverse, x[k + 1] * scale.inverse},
                                                 __NV_SATFINITE, __NV_E4M3)};
      };
      words[j / 4] = finite ? pair(j) | pair(j + 2) << 16 : 0;
    }
    if constexpr (N == 8) {
      *reinterpret_cast<uint2*>(to) = make_uint2(words[0], words[1]);
    } else {
      *reinterpret_cast<uint32_t*>(to) = words[0];
    }
  }
}

}  // namespace allot::kernels::cuda
