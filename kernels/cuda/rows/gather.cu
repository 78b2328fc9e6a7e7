#include <algorithm>

#include "kernels/cuda/rows/launch.h"
#include "kernels/cuda/rows/row_vectors.cuh"
#include "kernels/cuda/rows/validate_rows.h"
#include "kernels/rows_cuda.h"

namespace allot::kernels {
namespace cuda {
namespace {

constexpr uint32_t kMaxGatherThreads = 512;

template <class T, int N>
__global__ void __launch_bounds__(kMaxGatherThreads) gather_rows(GatherRowsParams p) {
  begin_overlapped();
  using Packed = std::conditional_t<N == 1, T, uint4>;
  const int32_t index = p.indices[blockIdx.x];
  const bool copied = index >= 0 && index < p.source_rows;
  const float filling = index < 0 ? 0.0f : __int_as_float(0x7FC00000);
  const int32_t count = p.width / N;
  const auto* const from = reinterpret_cast<const Packed*>(static_cast<const T*>(p.source) +
                                                           (copied ? index : 0) * int64_t{p.width});
  T* const to = static_cast<T*>(p.out) + int64_t{blockIdx.x} * p.width;
  for (auto i = static_cast<int32_t>(threadIdx.x); i < count; i += static_cast<int32_t>(blockDim.x)) {
    if (copied) {
      reinterpret_cast<Packed*>(to)[i] = from[i];
    } else {
      float x[N];
#pragma unroll
      for (int j = 0; j < N; ++j) x[j] = filling;
      store_elements<T, N>(to + int64_t{i} * N, x);
    }
  }
}

void launch_gather(const GatherRowsParams& p, const DeviceLimits& limits, CudaStream stream) {
  if (p.rows == 0) return;
  const bool aligned = aligned_to_vectors(p.width * size_of(p.dtype), p.source, p.out);
  for_element(p.dtype, aligned, [&]<class T, int N>() {
    const uint32_t threads = std::min(kMaxGatherThreads, (static_cast<uint32_t>(p.width) / N + 31) / 32 * 32);
    launch_overlapped(gather_rows<T, N>, {.rows = static_cast<uint32_t>(p.rows), .threads = threads}, limits,
                      stream, p);
  });
}

}  // namespace
}  // namespace cuda

void gather_rows_cuda(const GatherRowsParams& p, const DeviceLimits& limits, CudaStream stream) {
  cuda::check(p);
  cuda::launch_gather(p, limits, stream);
}

void gather_embeddings_cuda(const EmbeddingParams& p, const DeviceLimits& limits, CudaStream stream) {
  cuda::check(p);
  cuda::launch_gather({.rows = p.tokens,
                       .width = p.width,
                       .source_rows = p.vocab_size,
                       .dtype = p.dtype,
                       .source = p.table,
                       .indices = p.ids,
                       .out = p.out},
                      limits, stream);
}

}  // namespace allot::kernels
