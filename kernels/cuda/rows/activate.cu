#include "kernels/cuda/rows/launch.h"
#include "kernels/cuda/rows/row_vectors.cuh"
#include "kernels/cuda/rows/validate_rows.h"
#include "kernels/rows_cuda.h"

namespace allot::kernels {
namespace cuda {
namespace {

constexpr uint32_t kActivateThreads = 256;

__device__ __forceinline__ float activate(Activation activation, float x) {
  if (activation == Activation::kReluSquared) {
    x = x < 0 ? 0 : x;  // NaN stays
    return x * x;
  }
  return x / (1 + fast_exp2(x * -kLog2E));
}

// blockIdx.x is the row, blockIdx.y the part of it.
template <class T, int N>
__global__ void __launch_bounds__(kActivateThreads) activate_and_multiply(ActivateAndMultiplyParams p) {
  begin_overlapped();
  const int64_t row = blockIdx.x;
  const int64_t i = (int64_t{blockIdx.y} * kActivateThreads + threadIdx.x) * N;
  if (i >= p.width) return;
  const T* const gate = static_cast<const T*>(p.gate_up) + row * 2 * p.width + i;
  float x[N], up[N];
  load_elements<T, N>(gate, x);
  load_elements<T, N>(gate + p.width, up);
#pragma unroll
  for (int j = 0; j < N; ++j) x[j] = activate(p.activation, x[j]) * up[j];
  store_elements<T, N>(static_cast<T*>(p.out) + row * p.width + i, x);
}

}  // namespace
}  // namespace cuda

void activate_and_multiply_cuda(const ActivateAndMultiplyParams& p, const DeviceLimits& limits,
                                CudaStream stream) {
  cuda::check(p);
  if (p.rows == 0) return;
  const bool aligned = cuda::aligned_to_vectors(p.width * size_of(p.dtype), p.gate_up, p.out);
  cuda::for_element(p.dtype, aligned, [&]<class T, int N>() {
    const uint32_t per_block = cuda::kActivateThreads * N;
    const uint32_t parts = (static_cast<uint32_t>(p.width) + per_block - 1) / per_block;
    cuda::launch_overlapped(
        cuda::activate_and_multiply<T, N>,
        {.rows = static_cast<uint32_t>(p.rows), .parts = parts, .threads = cuda::kActivateThreads}, limits,
        stream, p);
  });
}

}  // namespace allot::kernels
