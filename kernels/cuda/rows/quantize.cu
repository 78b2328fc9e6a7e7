// One block a row. A thread keeps its part of the row in registers between the largest magnitude and the
// result.
#include <cuda_fp8.h>

#include <algorithm>

#include "kernels/cuda/rows/launch.h"
#include "kernels/cuda/rows/row_vectors.cuh"
#include "kernels/cuda/rows/validate_rows.h"
#include "kernels/fp8_cuda.h"
#include "kernels/split_keys.h"

namespace allot::kernels {
namespace cuda {
namespace {

constexpr uint32_t kMaxQuantizeThreads = 512;
// Vectors of a row that a thread keeps; what is beyond is read a second time.
constexpr int kKeptOfRow = 4;

// Largest over the block, the same in every thread; NaN where one is.
__device__ float largest_of_block(float x) {
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

template <class T, int N>
__global__ void __launch_bounds__(kMaxQuantizeThreads) quantize_rows_kernel(QuantizeRowsParams p) {
  begin_overlapped();
  const int64_t first = int64_t{blockIdx.x} * p.width;
  const T* const input = static_cast<const T*>(p.input) + first;
  uint8_t* const out = p.out + first;
  const auto step = static_cast<int32_t>(blockDim.x) * N;
  const int32_t begin = static_cast<int32_t>(threadIdx.x) * N;

  float largest = 0;
  const auto take = [&](int32_t i, float(&x)[N]) {
    load_elements<T, N>(input + i, x);
#pragma unroll
    for (int j = 0; j < N; ++j) largest = larger_magnitude(largest, x[j]);
  };
  float kept[kKeptOfRow][N];
#pragma unroll
  for (int k = 0; k < kKeptOfRow; ++k) {
    if (begin + k * step < p.width) take(begin + k * step, kept[k]);
  }
  for (int32_t i = begin + kKeptOfRow * step; i < p.width; i += step) {
    float x[N];
    take(i, x);
  }

  const Fp8Scale scale = fp8_scale(largest_of_block(largest));
  const bool finite = scale.scale == scale.scale;
  const auto give = [&](int32_t i, const float(&x)[N]) {
    if constexpr (N == 1) {
      out[i] = finite ? __nv_cvt_float_to_fp8(x[0] * scale.inverse, __NV_SATFINITE, __NV_E4M3) : uint8_t{0};
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
        *reinterpret_cast<uint2*>(out + i) = make_uint2(words[0], words[1]);
      } else {
        *reinterpret_cast<uint32_t*>(out + i) = words[0];
      }
    }
  };
#pragma unroll
  for (int k = 0; k < kKeptOfRow; ++k) {
    if (begin + k * step < p.width) give(begin + k * step, kept[k]);
  }
  for (int32_t i = begin + kKeptOfRow * step; i < p.width; i += step) {
    float x[N];
    load_elements<T, N>(input + i, x);
    give(i, x);
  }
  if (threadIdx.x == 0) p.scales[blockIdx.x] = scale.scale;
}

}  // namespace
}  // namespace cuda

void quantize_rows_cuda(const QuantizeRowsParams& p, const DeviceLimits& limits, CudaStream stream) {
  cuda::check(p);
  if (p.rows == 0) return;
  const bool aligned = cuda::aligned_to_vectors(p.width * size_of(p.dtype), p.input, p.out);
  cuda::for_element(p.dtype, aligned, [&]<class T, int N>() {
    const auto per_thread = static_cast<uint32_t>(cuda::kKeptOfRow * N);
    const uint32_t wanted = (static_cast<uint32_t>(p.width) + per_thread - 1) / per_thread;
    const uint32_t threads = std::min(cuda::kMaxQuantizeThreads, (wanted + 31) / 32 * 32);
    cuda::launch_overlapped(cuda::quantize_rows_kernel<T, N>,
                            {.rows = static_cast<uint32_t>(p.rows), .threads = threads}, limits, stream, p);
  });
}

}  // namespace allot::kernels
