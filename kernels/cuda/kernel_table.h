// Looks up compiled kernels by their parameters. Each family and dtype is a translation unit of its own, so
// that a build uses all cores. Value kernels are those of the estimators: Method::cuda_kernel(dtype,
// head_dim, row_warps) of kernels/methods, where row_warps is 1, 4 (shared only) or 8 (exact and top-k: any
// means 8).
#pragma once

#include <cstdint>

#include "kernels/attention.h"
#include "kernels/cuda/args.h"

namespace allot::kernels::cuda {

// A kernel and the shared memory it needs.
struct ScoreKernel {
  void (*function)(Args) = nullptr;
  int64_t warp_bytes = 0;   // dynamic shared memory of a warp
  int64_t block_bytes = 0;  // and of a block, for no sequences
  int64_t sequence_bytes = 0;
  int32_t blocks = 1;  // of a multiprocessor
};
struct ValueKernel {
  void (*function)(Args) = nullptr;
  int threads = 0;
  int rows = 1;         // of a block: query heads, or KV heads where `groups` is set
  bool groups = false;  // a row is a KV head with all its query heads
  int64_t (*row_bytes)(int32_t tiles, int32_t group) = nullptr;  // dynamic shared memory of a row
};

// Runs between the score kernel and the value kernel, a block for each query of the pass.
struct PoolKernel {
  void (*function)(Args) = nullptr;
  int threads = 0;
  int64_t (*shared_bytes)(int32_t num_q_heads, int32_t num_kv_heads) = nullptr;
};

// Columns of the score kernel's product are 8 * column_tiles queries: 1 or 2 in decode; in prefill 4, or 2
// for head_dim 256.
ScoreKernel score_kernel_bfloat16(int32_t head_dim, int32_t column_tiles, bool decode);
ScoreKernel score_kernel_float16(int32_t head_dim, int32_t column_tiles, bool decode);

// Of the Bernoulli score stages: 1 or 2 column tiles, decode and prefill alike.
ScoreKernel bernoulli_kernel_bfloat16(int32_t head_dim, int32_t column_tiles);
ScoreKernel bernoulli_kernel_float16(int32_t head_dim, int32_t column_tiles);

// Finds what the groups of a query share, of every query; for value kernels with Args::pools.
PoolKernel pool_kernel();

}  // namespace allot::kernels::cuda
