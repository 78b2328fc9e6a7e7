// The kernel of restore_split_keys_cuda (kernels/rows_cuda.h).
#pragma once

#include <cstdint>

#include "kernels/attention.h"
#include "kernels/cuda/rows/row_vectors.cuh"
#include "kernels/cuda/split_store.cuh"
#include "kernels/rows_cuda.h"

namespace allot::kernels::cuda {

inline constexpr uint32_t kRestoreThreads = 256;

// blockIdx.y is the sequence, blockIdx.x the entry of its page table.
template <class T, int kHeadDim>
__global__ void __launch_bounds__(kRestoreThreads) restore_keys(RestoreSplitKeysParams p) {
  begin_overlapped();
  constexpr int kLanes = kHeadDim / 8;
  const int64_t sequence = blockIdx.y;
  if (p.budgets != nullptr && p.budgets[sequence] != kDenseBudget) return;
  const int32_t keys = min(p.page_size, p.lengths[sequence] - static_cast<int32_t>(blockIdx.x) * p.page_size);
  if (keys <= 0) return;
  const int64_t page = p.page_table[sequence * p.max_pages + blockIdx.x];
  if (page < 0 || page >= p.num_pages) return;  // attention reports it
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int32_t count = keys * p.num_kv_heads;
  for (auto i = static_cast<int32_t>(threadIdx.x / kLanes); i < count;
       i += static_cast<int32_t>(kRestoreThreads / kLanes)) {
    const int32_t head = i / keys;
    const int64_t row = (page * p.num_kv_heads + head) * p.page_size + (i - head * keys);
    const auto key = static_cast<int32_t>(row % kSplitBlockKeys);
    const char* const block =
        static_cast<const char*>(p.high) + row / kSplitBlockKeys * split_block_bytes(kHeadDim);
    const uint2 high = *reinterpret_cast<const uint2*>(block + split_high_offset(kHeadDim, key) + 8 * lane);
    const float unit = *reinterpret_cast<const float*>(block + split_unit_offset(kHeadDim, key));
    uint2 low = {0, 0};
    if (p.low != nullptr) low = *reinterpret_cast<const uint2*>(p.low + row * kHeadDim + 8 * lane);
    float x[8];
    restore_eight<kHeadDim>(high, low, unit, lane, x);
    store_elements<T, 8>(static_cast<T*>(p.key_pages) + row * kHeadDim + 8 * lane, x);
  }
}

}  // namespace allot::kernels::cuda
