// The kernel of restore_split_keys_cuda (kernels/rows_cuda.h).
#pragma once

#include <cstdint>

#include "kernels/attention.h"
#include "kernels/cuda/rows/row_vectors.cuh"
#include "kernels/cuda/split_store.cuh"
#include "kernels/rows_cuda.h"

namespace allot::kernels::cuda {

inline constexpr uint32_t kRestoreThreads = 256;

// blockIdx.y is the sequence, blockIdx.x the entry of its page table. Numbers below 2^32 throughout: a pool
// has fewer rows (attention_cuda.h), and 64-bit divisions are slow.
template <class T, int kHeadDim>
__global__ void __launch_bounds__(kRestoreThreads) restore_keys(RestoreSplitKeysParams p) {
  begin_overlapped();
  constexpr uint32_t kLanes = kHeadDim / 16;
  const int64_t sequence = blockIdx.y;
  if (p.budgets != nullptr && p.budgets[sequence] != kDenseBudget) return;
  const int32_t keys = p.lengths[sequence] - static_cast<int32_t>(blockIdx.x) * p.page_size;
  if (keys <= 0) return;
  const int64_t page = p.page_table[sequence * p.max_pages + blockIdx.x];
  if (page < 0 || page >= p.num_pages) return;  // attention reports it
  const auto lane = static_cast<int>(threadIdx.x % kLanes);
  const auto page_size = static_cast<uint32_t>(p.page_size);
  const auto first_row = static_cast<uint32_t>(page) * static_cast<uint32_t>(p.num_kv_heads) * page_size;
  const uint32_t count = page_size * static_cast<uint32_t>(p.num_kv_heads);
  for (uint32_t i = threadIdx.x / kLanes; i < count; i += kRestoreThreads / kLanes) {
    if (static_cast<int32_t>(i % page_size) >= keys) continue;
    const uint32_t row = first_row + i;
    const auto key = static_cast<int32_t>(row % kSplitBlockKeys);
    const char* const block =
        static_cast<const char*>(p.high) + int64_t{row / kSplitBlockKeys} * split_block_bytes(kHeadDim);
    const uint4 high = *reinterpret_cast<const uint4*>(block + split_high_offset(kHeadDim, key, 16 * lane));
    const float unit = *reinterpret_cast<const float*>(block + split_unit_offset(kHeadDim, key));
    uint4 low = {0, 0, 0, 0};
    if (p.low != nullptr) low = *reinterpret_cast<const uint4*>(p.low + int64_t{row} * kHeadDim + 16 * lane);
    float x[16];
    restore_sixteen<kHeadDim>(high, low, unit, lane, x);
    uint32_t words[8];
#pragma unroll
    for (int j = 0; j < 8; ++j) words[j] = pack<T>(x[2 * j], x[2 * j + 1]);
    auto* const to =
        reinterpret_cast<uint4*>(static_cast<T*>(p.key_pages) + int64_t{row} * kHeadDim + 16 * lane);
    to[0] = make_uint4(words[0], words[1], words[2], words[3]);
    to[1] = make_uint4(words[4], words[5], words[6], words[7]);
  }
}

}  // namespace allot::kernels::cuda
