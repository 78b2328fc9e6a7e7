// Looks up compiled kernels by their parameters. Each family and dtype is a translation unit of its own, so
// that a build uses all cores. Value kernels are those of the estimators: Method::cuda_kernel(dtype,
// head_dim, workers) of kernels/methods.
#pragma once

#include <cstdint>

#include "kernels/attention.h"
#include "kernels/cuda/args.h"

namespace allot::kernels::cuda {

// Who works on a row of the value kernel. An estimator has kernels for some of them; asked for others it
// gives the one for kBlock.
enum class Workers : uint8_t {
  kWarp,
  kFourWarps,  // groups only
  kBlock,      // eight warps, or several such blocks, each with its own part of a long row
  // Groups only, who hold the sizes of all rows: a warp in registers, in a launch whose rows all have at most
  // kShortTiles tiles; the others in shared memory, that of several blocks where these are a cluster.
  kWarpOfShortRow,
  kWarpThatHolds,
  kFourWarpsThatHold,
  kCluster,
};
constexpr bool hold_sizes(Workers workers) {
  return workers >= Workers::kWarpOfShortRow;
}

// A kernel and the shared memory it needs.
struct ScoreKernel {
  void (*function)(Args) = nullptr;
  int64_t warp_bytes = 0;   // dynamic shared memory of a warp
  int64_t block_bytes = 0;  // and of a block, for no sequences
  int64_t sequence_bytes = 0;
  int32_t blocks = 1;      // of a multiprocessor
  int32_t most_warps = 8;  // of a block that have such shared memory
  int32_t other_warps = 0;
};
struct ValueKernel {
  void (*function)(Args) = nullptr;
  int threads = 0;
  int rows = 1;         // of a block: query heads of a query, or KV heads of any where `groups` is set
  bool groups = false;  // a row is a KV head with all its query heads
  // Dynamic shared memory: of a row, or of each of the blocks that serve one as a cluster.
  int64_t (*row_bytes)(int32_t tiles, int32_t group) = nullptr;
  int64_t (*cluster_bytes)(int32_t tiles, int32_t group, int32_t blocks) = nullptr;

  bool clusters() const { return cluster_bytes != nullptr; }
  int64_t shared_bytes(int32_t tiles, int32_t group, int32_t cluster_blocks) const {
    return clusters() ? cluster_bytes(tiles, group, cluster_blocks) : rows * row_bytes(tiles, group);
  }
};

// Blocks of a value kernel for a pass of `queries` queries whose rows up to `parts` blocks share.
struct ValueGrid {
  unsigned rows;
  unsigned parts;
  unsigned queries;
};
inline ValueGrid value_grid(const ValueKernel& kernel, int32_t num_q_heads, int32_t num_kv_heads,
                            int32_t parts, int32_t queries) {
  const auto blocks = [&](int64_t rows) {
    return static_cast<unsigned>((rows + kernel.rows - 1) / kernel.rows);
  };
  // Groups of neighbouring queries share blocks, so that no warp is idle where KV heads are few.
  if (kernel.groups && kernel.rows > 1)
    return {blocks(int64_t{queries} * num_kv_heads), static_cast<unsigned>(parts), 1};
  return {blocks(kernel.groups ? num_kv_heads : num_q_heads), static_cast<unsigned>(parts),
          static_cast<unsigned>(queries)};
}

// Runs between the score kernel and the value kernel, a block for each query of the pass.
struct PoolKernel {
  void (*function)(Args) = nullptr;
  int threads = 0;
  int64_t (*shared_bytes)(int32_t num_q_heads, int32_t num_kv_heads) = nullptr;
};

// What a score kernel is for.
enum class ScoreUse : int32_t {
  kPrefill,          // with the statistics of norms where Args has a place for them
  kDecode,           // one query a sequence, without
  kDecodeWithNorms,  // a kernel of its own, because registers leave the value kernel's blocks less room
};

// Columns of the score kernel's product are 8 * column_tiles queries: 1 or 2 in decode; in prefill 4, or 2
// for head_dim 256.
ScoreKernel score_kernel_bfloat16(int32_t head_dim, int32_t column_tiles, ScoreUse use);
ScoreKernel score_kernel_float16(int32_t head_dim, int32_t column_tiles, ScoreUse use);

// Of split keys, in decode: 4 * head_tiles query heads, 1, 2 or 4 tiles. Heads of 64 and 128; of the value
// kernels with a low plane, those of iid, strat, sys, threshold, joint, pooled and level. Others are empty.
ScoreKernel split_score_kernel(int32_t head_dim, int32_t head_tiles);
ValueKernel split_value_kernel_bfloat16(Estimator estimator, int32_t head_dim, Workers workers);
ValueKernel split_value_kernel_float16(Estimator estimator, int32_t head_dim, Workers workers);

// Exact decoding: scores and values in one kernel, with 8 * column_tiles columns for the query heads of a
// group.
ScoreKernel exact_decode_kernel_bfloat16(int32_t head_dim, int32_t column_tiles);
ScoreKernel exact_decode_kernel_float16(int32_t head_dim, int32_t column_tiles);
// The same over the planes of split keys, for heads of 64 and 128; others are empty.
ScoreKernel split_exact_decode_kernel_bfloat16(int32_t head_dim, int32_t column_tiles);
ScoreKernel split_exact_decode_kernel_float16(int32_t head_dim, int32_t column_tiles);

// Of the Bernoulli score stages: 1 or 2 column tiles, decode and prefill alike.
ScoreKernel bernoulli_kernel_bfloat16(int32_t head_dim, int32_t column_tiles);
ScoreKernel bernoulli_kernel_float16(int32_t head_dim, int32_t column_tiles);

// Finds what the groups of a query share, of every query; for value kernels with Args::pools.
PoolKernel pool_kernel();

}  // namespace allot::kernels::cuda
