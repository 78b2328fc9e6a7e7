// One block a row. A thread keeps its part of the row in registers between the largest magnitude and the
// result.
#include <algorithm>

#include "kernels/cuda/rows/launch.h"
#include "kernels/cuda/rows/quantized_row.cuh"
#include "kernels/cuda/rows/row_vectors.cuh"
#include "kernels/cuda/rows/validate_rows.h"
#include "kernels/fp8_cuda.h"

namespace allot::kernels {
namespace cuda {
namespace {

// Vectors of a row that a thread keeps; what is beyond is read a second time.
constexpr int kKeptOfRow = 4;

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
#pragma unroll
  for (int k = 0; k < kKeptOfRow; ++k) {
    if (begin + k * step < p.width) store_quantized(out + begin + k * step, kept[k], scale);
  }
  for (int32_t i = begin + kKeptOfRow * step; i < p.width; i += step) {
    float x[N];
    load_elements<T, N>(input + i, x);
    store_quantized(out + i, x, scale);
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
