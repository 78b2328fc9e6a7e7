// One block a row. A thread keeps its part of the row in registers between the sum of squares and the result.
#include <algorithm>

#include "kernels/cuda/rows/launch.h"
#include "kernels/cuda/rows/quantized_row.cuh"
#include "kernels/cuda/rows/row_vectors.cuh"
#include "kernels/cuda/rows/validate_rows.h"
#include "kernels/fp8_cuda.h"
#include "kernels/rows_cuda.h"

namespace allot::kernels {
namespace cuda {
namespace {

constexpr uint32_t kMaxThreads = 512;
// Vectors of a row that a thread keeps; what is beyond is read a second time.
constexpr int kKept = 2;

// Sum over the block in a fixed order, the same in every thread.
__device__ float block_sum(float x) {
  __shared__ float warp_sums[kMaxThreads / 32];
  const uint32_t warps = blockDim.x / 32;
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(kFullWarp, x, offset);
  if (threadIdx.x % 32 == 0) warp_sums[threadIdx.x / 32] = x;
  __syncthreads();
  x = threadIdx.x % 32 < warps ? warp_sums[threadIdx.x % 32] : 0;
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x += __shfl_xor_sync(kFullWarp, x, offset);
  return x;
}

// Largest over the block, the same in every thread; of numbers that are not negative.
__device__ float block_max(float x) {
  __shared__ float warp_maxima[kMaxThreads / 32];
  const uint32_t warps = blockDim.x / 32;
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(kFullWarp, x, offset));
  if (threadIdx.x % 32 == 0) warp_maxima[threadIdx.x / 32] = x;
  __syncthreads();
  x = threadIdx.x % 32 < warps ? warp_maxima[threadIdx.x % 32] : 0;
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(kFullWarp, x, offset));
  return x;
}

// With kQuantizes the row goes to `quantized`, not to p.out.
template <class T, int N, bool kQuantizes>
__global__ void __launch_bounds__(kMaxThreads) rms_norm(RmsNormParams p, QuantizedRows quantized) {
  begin_overlapped();
  const int64_t first = int64_t{blockIdx.x} * p.width;
  const T* const input = static_cast<const T*>(p.input) + first;
  T* const residual = p.residual == nullptr ? nullptr : static_cast<T*>(p.residual) + first;
  const T* const weight = static_cast<const T*>(p.weight);
  T* const out = static_cast<T*>(p.out) + first;
  const auto step = static_cast<int32_t>(blockDim.x) * N;
  const int32_t begin = static_cast<int32_t>(threadIdx.x) * N;

  float squares = 0;
  // Elements i..i+N of what is normed, after the residual stream took them.
  const auto take = [&](int32_t i, float(&x)[N]) {
    load_elements<T, N>(input + i, x);
    if (residual != nullptr) {
      float stream[N];
      load_elements<T, N>(residual + i, stream);
#pragma unroll
      for (int j = 0; j < N; ++j) x[j] += stream[j];
      store_elements<T, N>(residual + i, x);
    }
#pragma unroll
    for (int j = 0; j < N; ++j) squares = fmaf(x[j], x[j], squares);
  };
  float kept[kKept][N];
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    if (begin + k * step < p.width) take(begin + k * step, kept[k]);
  }
  for (int32_t i = begin + kKept * step; i < p.width; i += step) {
    float x[N];
    take(i, x);
  }

  const float factor = 1 / sqrtf(block_sum(squares) / static_cast<float>(p.width) + p.epsilon);
  float largest = 0;
  const auto norm = [&](int32_t i, float(&x)[N]) {
    float w[N];
    load_elements<T, N>(weight + i, w);
#pragma unroll
    for (int j = 0; j < N; ++j) x[j] = x[j] * factor * w[j];
  };
  if constexpr (kQuantizes) {
    const auto find_largest = [&](int32_t i, float(&x)[N]) {
      norm(i, x);
      round_elements<T>(x);
#pragma unroll
      for (int j = 0; j < N; ++j) largest = larger_magnitude(largest, x[j]);
    };
    uint8_t* const bits = quantized.elements + first;
#pragma unroll
    for (int k = 0; k < kKept; ++k) {
      if (begin + k * step < p.width) find_largest(begin + k * step, kept[k]);
    }
    const auto again = [&](int32_t i, float(&x)[N]) {
      load_elements<T, N>((residual != nullptr ? residual : input) + i, x);
      find_largest(i, x);
    };
    for (int32_t i = begin + kKept * step; i < p.width; i += step) {
      float x[N];
      again(i, x);
    }
    const Fp8Scale scale = fp8_scale(largest_of_block(largest));
#pragma unroll
    for (int k = 0; k < kKept; ++k) {
      if (begin + k * step < p.width) store_quantized(bits + begin + k * step, kept[k], scale);
    }
    for (int32_t i = begin + kKept * step; i < p.width; i += step) {
      float x[N];
      again(i, x);
      store_quantized(bits + i, x, scale);
    }
    if (threadIdx.x == 0) quantized.scales[blockIdx.x] = scale.scale;
    return;
  }
  const auto give = [&](int32_t i, float(&x)[N]) {
    norm(i, x);
    store_elements<T, N>(out + i, x);
#pragma unroll
    for (int j = 0; j < N; ++j) largest = fmaxf(largest, fabsf(x[j]));
  };
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    if (begin + k * step < p.width) give(begin + k * step, kept[k]);
  }
  for (int32_t i = begin + kKept * step; i < p.width; i += step) {
    float x[N];
    load_elements<T, N>((residual != nullptr ? residual : input) + i, x);
    give(i, x);
  }

  if (!p.int8_grid) return;
  const float scale = 127 / fmaxf(block_max(largest), kLeastInt8Range);
  const auto round = [&](int32_t i, float(&x)[N]) {
#pragma unroll
    for (int j = 0; j < N; ++j) x[j] = rintf(x[j] * scale) / scale;
    store_elements<T, N>(out + i, x);
  };
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    if (begin + k * step < p.width) round(begin + k * step, kept[k]);
  }
  for (int32_t i = begin + kKept * step; i < p.width; i += step) {
    float x[N];
    load_elements<T, N>(out + i, x);  // what this thread has written
    round(i, x);
  }
}

}  // namespace
}  // namespace cuda

namespace cuda {
namespace {

uint32_t norm_threads(int32_t width, int elements) {
  const auto per_thread = static_cast<uint32_t>(kKept * elements);
  const uint32_t wanted = (static_cast<uint32_t>(width) + per_thread - 1) / per_thread;
  return std::min(kMaxThreads, (wanted + 31) / 32 * 32);
}

}  // namespace
}  // namespace cuda

void rms_norm_cuda(const RmsNormParams& p, const DeviceLimits& limits, CudaStream stream) {
  cuda::check(p);
  if (p.rows == 0) return;
  const bool aligned =
      cuda::aligned_to_vectors(p.width * size_of(p.dtype), p.input, p.residual, p.weight, p.out);
  cuda::for_element(p.dtype, aligned, [&]<class T, int N>() {
    cuda::launch_overlapped(
        cuda::rms_norm<T, N, false>,
        {.rows = static_cast<uint32_t>(p.rows), .threads = cuda::norm_threads(p.width, N)}, limits, stream, p,
        QuantizedRows{});
  });
}

void rms_norm_quantized_cuda(const RmsNormParams& p, const QuantizedRows& out, const DeviceLimits& limits,
                             CudaStream stream) {
  cuda::check(p, out);
  if (p.rows == 0) return;
  constexpr int kElements = cuda::kVector<__nv_bfloat16>;
  cuda::launch_overlapped(
      cuda::rms_norm<__nv_bfloat16, kElements, true>,
      {.rows = static_cast<uint32_t>(p.rows), .threads = cuda::norm_threads(p.width, kElements)}, limits,
      stream, p, out);
}

}  // namespace allot::kernels
