// Pages of a cache to contiguous rows: a copy, bound by memory. A block moves a few tokens with all their
// heads; every thread has several 16-byte loads of keys and of values under way before it stores the first.
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/rows/launch.h"
#include "kernels/cuda/rows/row_vectors.cuh"
#include "kernels/cuda/rows/validate_rows.h"
#include "kernels/rows_cuda.h"

namespace allot::kernels {
namespace cuda {
namespace {

constexpr int32_t kThreads = 256;
constexpr int32_t kTokensOfBlock = 16;
constexpr int32_t kLoadsInFlight = 4;  // of keys, and as many of values

constexpr int64_t kNotThere = -1;   // a row of NaN
constexpr int64_t kNotWanted = -2;  // beyond the last sequence

// The sequence that row `token` belongs to: the first that ends after it, or `sequences`.
__device__ int64_t sequence_of(const GatherCacheParams& p, int32_t token) {
  int64_t low = 0, high = p.sequences;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (p.cum_keys[middle + 1] > token) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

// Row of the token's first head in the pages; the next head's is page_size further.
__device__ int64_t cached_row(const GatherCacheParams& p, int32_t token) {
  const int64_t sequence = sequence_of(p, token);
  if (sequence == p.sequences) return kNotWanted;
  const int32_t position = token - p.cum_keys[sequence];
  const int32_t block = position / p.page_size;
  if (position < 0 || block >= p.max_pages) return kNotThere;
  const int64_t page = p.page_table[sequence * p.max_pages + block];
  if (page < 0 || page >= p.num_pages) return kNotThere;
  return page * p.num_kv_heads * p.page_size + position % p.page_size;
}

// All bits set are a NaN in every dtype.
template <class Packed>
__device__ Packed not_a_number() {
  if constexpr (std::is_same_v<Packed, uint4>) {
    return make_uint4(~0u, ~0u, ~0u, ~0u);
  } else {
    return static_cast<Packed>(~Packed{0});
  }
}

// Packed is as many bits as are moved at a time; `pieces` of them make a head's row.
template <class Packed>
__global__ void __launch_bounds__(kThreads) gather_cache(GatherCacheParams p, int32_t pieces) {
  begin_overlapped();
  __shared__ int64_t rows[kTokensOfBlock];
  const int64_t first_token = int64_t{blockIdx.x} * kTokensOfBlock;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  if (thread < kTokensOfBlock) {
    const int64_t token = first_token + thread;
    rows[thread] = token < p.total_keys ? cached_row(p, static_cast<int32_t>(token)) : kNotWanted;
  }
  __syncthreads();

  const int32_t of_token = p.num_kv_heads * pieces;
  const int32_t count = kTokensOfBlock * of_token;
  const auto* const key_pages = static_cast<const Packed*>(p.key_pages);
  const auto* const value_pages = static_cast<const Packed*>(p.value_pages);
  Packed* const keys = static_cast<Packed*>(p.keys) + first_token * of_token;
  Packed* const values = static_cast<Packed*>(p.values) + first_token * of_token;
  for (int32_t first = thread; first < count; first += kThreads * kLoadsInFlight) {
    Packed key[kLoadsInFlight], value[kLoadsInFlight];
    bool wanted[kLoadsInFlight];
#pragma unroll
    for (int32_t j = 0; j < kLoadsInFlight; ++j) {
      const int32_t i = first + j * kThreads;
      const int64_t row = i < count ? rows[i / of_token] : kNotWanted;
      wanted[j] = row != kNotWanted;
      key[j] = value[j] = not_a_number<Packed>();
      if (row < 0) continue;
      const int32_t head = i % of_token / pieces;
      const int64_t from = (row + int64_t{head} * p.page_size) * pieces + i % pieces;
      key[j] = key_pages[from];
      value[j] = value_pages[from];
    }
#pragma unroll
    for (int32_t j = 0; j < kLoadsInFlight; ++j) {
      if (!wanted[j]) continue;
      keys[first + j * kThreads] = key[j];
      values[first + j * kThreads] = value[j];
    }
  }
}

template <class Packed>
void launch(const GatherCacheParams& p, const DeviceLimits& limits, CudaStream stream) {
  const int64_t row_bytes = p.head_dim * size_of(p.dtype);
  const int64_t blocks = (p.total_keys + kTokensOfBlock - 1) / kTokensOfBlock;
  launch_overlapped(gather_cache<Packed>, {.rows = static_cast<uint32_t>(blocks), .threads = kThreads},
                    limits, stream, p, static_cast<int32_t>(row_bytes / int64_t{sizeof(Packed)}));
}

}  // namespace
}  // namespace cuda

void gather_cache_cuda(const GatherCacheParams& p, const DeviceLimits& limits, CudaStream stream) {
  cuda::check(p);
  if (p.sequences == 0 || p.total_keys == 0) return;
  if (cuda::aligned_to_vectors(p.head_dim * size_of(p.dtype), p.key_pages, p.value_pages, p.keys, p.values)) {
    cuda::launch<uint4>(p, limits, stream);
  } else if (size_of(p.dtype) == 4) {
    cuda::launch<uint32_t>(p, limits, stream);
  } else {
    cuda::launch<uint16_t>(p, limits, stream);
  }
}

}  // namespace allot::kernels
