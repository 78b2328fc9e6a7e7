// The value kernels, compiled for the host (emulation.h).
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/attention.h"

namespace allot::kernels::testing {

// What runs for a pass of a launch.
struct EmulatedLaunch {
  const void* args = nullptr;  // cuda::Args, with pointers to host memory
  Estimator estimator = Estimator::kExact;
  DType dtype = DType::kFloat16;
  int32_t head_dim = 0;
  int workers = 0;  // cuda::Workers
  int32_t row_tiles = 0;
  int32_t parts = 0;
  int32_t cluster_blocks = 0;
  int32_t queries = 0;
  int32_t num_q_heads = 0;
  int32_t num_kv_heads = 0;
  // Of exact decoding.
  int32_t exact_column_tiles = 1;
  int32_t exact_threads = 0;
  int64_t exact_shared_bytes = 0;
  // Of the kernel for short rows.
  int32_t short_threads = 0;
  int64_t short_shared_bytes = 0;
};

// Of float16 with head_dim 64 and 96, and bfloat16 with 64; throws InvalidArgument for others.
void run_emulated_values(const EmulatedLaunch& launch);
// Of the same shapes, over split keys of float16 with head_dim 128 instead of 96; on a device with three
// multiprocessors.
void run_emulated_exact_decode(const EmulatedLaunch& launch);
// Of the same shapes, on a device with one multiprocessor.
void run_emulated_short_decode(const EmulatedLaunch& launch);
// The order in which that kernel hands out sequences of these lengths, with blocks of `threads` threads;
// empty where it is their own.
std::vector<int32_t> emulated_length_order(const std::vector<int32_t>& lengths, int32_t max_length,
                                           int threads);
// For estimators that share out a query's rows among its groups; runs before the values.
void run_emulated_pools(const EmulatedLaunch& launch);

}  // namespace allot::kernels::testing
