// Keys and queries into planes of 8 bits: kHeadDim / 8 neighbouring lanes do one head of one token.
#include "kernels/cuda/rows/launch.h"
#include "kernels/cuda/rows/row_vectors.cuh"
#include "kernels/cuda/rows/validate_rows.h"
#include "kernels/cuda/split_store.cuh"
#include "kernels/rows_cuda.h"

namespace allot::kernels {
namespace cuda {
namespace {

constexpr uint32_t kSplitThreads = 128;

// This thread's head of the token blockIdx.x, and its place among the lanes that share it.
template <int kHeadDim>
struct SplitPlace {
  int lane = static_cast<int>(threadIdx.x) % (kHeadDim / 8);
  int32_t head = static_cast<int32_t>(blockIdx.y * kSplitThreads + threadIdx.x) / (kHeadDim / 8);
};

// The vector's elements of this lane, zeros where there is no such head.
template <class T, int kHeadDim>
__device__ __forceinline__ void load_eight_of(const void* vectors, int64_t stride,
                                              const SplitPlace<kHeadDim>& place, bool exists, float (&x)[8]) {
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = 0;
  if (!exists) return;
  const T* const from = static_cast<const T*>(vectors) + int64_t{blockIdx.x} * stride +
                        int64_t{place.head} * kHeadDim + 8 * place.lane;
  load_elements<T, 8>(from, x);
}

template <class T, int kHeadDim>
__global__ void __launch_bounds__(kSplitThreads) store_split_keys(StoreSplitKeysParams p) {
  begin_overlapped();
  const SplitPlace<kHeadDim> place;
  const int64_t slot = p.slots[blockIdx.x];
  const bool stored = slot >= 0 && slot < p.num_pages * int64_t{p.page_size} && place.head < p.num_kv_heads;
  float x[8];
  load_eight_of<T>(p.keys, p.key_stride, place, stored, x);
  const SplitEight eight = split_eight<kHeadDim>(x, place.lane);
  if (!stored) return;
  const auto page = static_cast<uint32_t>(slot) / static_cast<uint32_t>(p.page_size);
  const auto offset = static_cast<uint32_t>(slot) % static_cast<uint32_t>(p.page_size);
  const int64_t row = (int64_t{page} * p.num_kv_heads + place.head) * p.page_size + offset;
  const auto key = static_cast<int32_t>(row % kSplitBlockKeys);
  char* const block = static_cast<char*>(p.high) + row / kSplitBlockKeys * split_block_bytes(kHeadDim);
  *reinterpret_cast<uint2*>(block + split_high_offset(kHeadDim, key, 8 * place.lane)) = eight.high;
  if (place.lane == 0) *reinterpret_cast<float*>(block + split_unit_offset(kHeadDim, key)) = eight.unit;
  if (p.low != nullptr) *reinterpret_cast<uint2*>(p.low + row * kHeadDim + 8 * place.lane) = eight.low;
}

template <class T, int kHeadDim>
__global__ void __launch_bounds__(kSplitThreads) split_queries(SplitQueriesParams p) {
  begin_overlapped();
  const SplitPlace<kHeadDim> place;
  const bool exists = place.head < p.num_q_heads;
  float x[8];
  load_eight_of<T>(p.queries, p.query_stride, place, exists, x);
  const SplitEight eight = split_eight<kHeadDim>(x, place.lane);
  if (!exists) return;
  const int64_t row = int64_t{blockIdx.x} * p.num_q_heads + place.head;
  int8_t* const planes = p.planes + 2 * row * kHeadDim + 8 * place.lane;
  *reinterpret_cast<uint2*>(planes) = eight.high;
  *reinterpret_cast<uint2*>(planes + kHeadDim) = eight.low;
  if (place.lane == 0) p.units[row] = eight.unit / kHeadDim;
}

// Calls launch.template operator()<T, kHeadDim>() for the vectors that have a kernel.
template <class Launch>
void for_split_kernel(DType dtype, int32_t head_dim, const Launch& launch) {
  const auto for_type = [&]<class T>() {
    if (head_dim == 64) {
      launch.template operator()<T, 64>();
    } else {
      launch.template operator()<T, 128>();
    }
  };
  if (dtype == DType::kBFloat16) {
    for_type.template operator()<__nv_bfloat16>();
  } else {
    for_type.template operator()<__half>();
  }
}

RowGrid split_grid(int64_t tokens, int32_t heads, int head_dim) {
  const uint32_t heads_of_block = kSplitThreads / (static_cast<uint32_t>(head_dim) / 8);
  return {.rows = static_cast<uint32_t>(tokens),
          .parts = (static_cast<uint32_t>(heads) + heads_of_block - 1) / heads_of_block,
          .threads = kSplitThreads};
}

}  // namespace
}  // namespace cuda

void store_split_keys_cuda(const StoreSplitKeysParams& p, const DeviceLimits& limits, CudaStream stream) {
  cuda::check(p);
  if (p.tokens == 0) return;
  cuda::for_split_kernel(p.dtype, p.head_dim, [&]<class T, int kHeadDim>() {
    cuda::launch_overlapped(cuda::store_split_keys<T, kHeadDim>,
                            cuda::split_grid(p.tokens, p.num_kv_heads, kHeadDim), limits, stream, p);
  });
}

void split_queries_cuda(const SplitQueriesParams& p, const DeviceLimits& limits, CudaStream stream) {
  cuda::check(p);
  if (p.tokens == 0) return;
  cuda::for_split_kernel(p.dtype, p.head_dim, [&]<class T, int kHeadDim>() {
    cuda::launch_overlapped(cuda::split_queries<T, kHeadDim>,
                            cuda::split_grid(p.tokens, p.num_q_heads, kHeadDim), limits, stream, p);
  });
}

}  // namespace allot::kernels
