// A power of two of neighbouring lanes does one head of one token.
#include <algorithm>
#include <bit>

#include "kernels/cuda/rows/launch.h"
#include "kernels/cuda/rows/row_vectors.cuh"
#include "kernels/cuda/rows/validate_rows.h"
#include "kernels/rows_cuda.h"

namespace allot::kernels {
namespace cuda {
namespace {

constexpr uint32_t kNormThreads = 128;

// blockIdx.x is the token.
template <class T, int N>
__global__ void __launch_bounds__(kNormThreads) store_value_norms(ValueNormsParams p, int32_t lanes) {
  begin_overlapped();
  const int64_t token = blockIdx.x;
  const int64_t slot = p.slots[token];
  if (slot < 0 || slot >= p.num_pages * int64_t{p.page_size}) return;
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % lanes;
  const int32_t head = static_cast<int32_t>(blockIdx.y * kNormThreads + threadIdx.x) / lanes;
  if (head >= p.num_kv_heads) return;
  const T* const value =
      static_cast<const T*>(p.values) + token * p.value_stride + int64_t{head} * p.head_dim;
  float squares = 0;
  for (int32_t i = lane * N; i < p.head_dim; i += lanes * N) {
    float x[N];
    load_elements<T, N>(value + i, x);
#pragma unroll
    for (int j = 0; j < N; ++j) squares = fmaf(x[j], x[j], squares);
  }
  squares = sum_of_lanes(squares, lanes);
  if (lane != 0) return;
  const auto page = static_cast<uint32_t>(slot) / static_cast<uint32_t>(p.page_size);
  const auto offset = static_cast<uint32_t>(slot) % static_cast<uint32_t>(p.page_size);
  p.value_norms[(int64_t{page} * p.num_kv_heads + head) * p.page_size + offset] = sqrtf(squares);
}

}  // namespace
}  // namespace cuda

void store_value_norms_cuda(const ValueNormsParams& p, const DeviceLimits& limits, CudaStream stream) {
  cuda::check(p);
  if (p.tokens == 0) return;
  const int64_t element = size_of(p.dtype);
  const bool aligned =
      p.head_dim * element % 16 == 0 && cuda::aligned_to_vectors(p.value_stride * element, p.values);
  cuda::for_element(p.dtype, aligned, [&]<class T, int N>() {
    const auto lanes = std::min(32u, std::bit_ceil(static_cast<uint32_t>((p.head_dim + N - 1) / N)));
    const uint32_t heads_of_block = cuda::kNormThreads / lanes;
    cuda::launch_overlapped(
        cuda::store_value_norms<T, N>,
        {.rows = static_cast<uint32_t>(p.tokens),
         .parts = (static_cast<uint32_t>(p.num_kv_heads) + heads_of_block - 1) / heads_of_block,
         .threads = cuda::kNormThreads},
        limits, stream, p, static_cast<int32_t>(lanes));
  });
}

}  // namespace allot::kernels
