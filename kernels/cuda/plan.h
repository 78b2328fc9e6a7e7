// Decides the grids, shared memory and workspace of a launch: pure host arithmetic, tested without a GPU.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention_cuda.h"
#include "kernels/cuda/args.h"
#include "kernels/cuda/kernel_table.h"
#include "kernels/cuda/short_decode.h"

namespace allot::kernels::cuda {

// A score kernel of a launch.
struct ScorePlan {
  int32_t column_tiles = 1;  // 8 columns each
  int32_t warps = 0;         // of a block, that read keys
  int32_t threads = 0;       // of a block
  int32_t blocks = 0;
  int64_t shared_bytes = 0;
  int32_t piece_tiles = 1;  // score tiles a warp takes at a time
};

struct Plan {
  // The keys are read in `passes` passes over windows of pass_queries queries of every sequence, so that the
  // weights of a long prefill fit in a bounded workspace. Decode is one pass, unless more than kMaxRows rows
  // are shared by several blocks.
  int32_t pass_queries = 0;
  int32_t passes = 0;
  bool one_query_each = false;
  int32_t announced = 0;  // sequences, the first ones, sampled while the keys of others are still being read

  ScorePlan score;
  // The score kernel of dense sequences in a launch whose other queries are Bernoulli estimates, and the
  // kernel for dense sequences with a single query, scores and values; they have no warps where there are
  // none.
  ScorePlan dense_score;
  ScorePlan exact_decode;
  // The kernel that has many short rows to itself, scores and values, in place of the score and the value
  // kernel; without warps where these serve the launch.
  ScorePlan short_decode;

  Workers workers = Workers::kWarp;  // of the value kernel
  int32_t parts = 1;                 // blocks that may share a row, unless they are a cluster
  int32_t cluster_blocks = 1;        // blocks that serve a row as a cluster
  bool norm_stats = false;           // sums of weights times norms of values are needed
  bool few_rows = false;             // heads of all queries, no more of them than there are multiprocessors

  // Workspace, in bytes from its start; each array is aligned to kWorkspaceAlignment.
  int32_t row_tiles = 0;  // even, so that the statistics of every row begin at a multiple of 16 bytes
  int64_t stats_offset = 0;
  int64_t weights_offset = 0;
  int64_t norm_stats_offset = 0;  // 0 where no such sums are needed
  int64_t partial_offset = 0;
  bool dense_left = false;           // dense sequences may be left to the other kernels
  bool exact_alone = false;          // the launch is that kernel
  int32_t exact_parts = 1;           // most parts of a row that it serves
  int64_t exact_partial_offset = 0;  // 0 where such rows have one part, or there are none
  int64_t pools_offset = 0;          // 0 where groups do not share out their rows
  int64_t rest_below_offset = 0;
  int64_t row_table_offset = 0;  // 0 where value rows are not counted by tables
  int64_t row_table_bytes = 0;
  int32_t row_slots = 0;
  int64_t workspace_bytes = 0;  // grows with every bound: enough for any launch within the bounds

  // Most blocks that share a row of the value kernel.
  int32_t row_blocks(const ValueKernel& kernel) const { return kernel.clusters() ? cluster_blocks : parts; }
};

inline constexpr int64_t kWorkspaceAlignment = 256;
// Workspace that one pass of a prefill may use, unless one block of queries needs more.
inline constexpr int64_t kPassBytes = int64_t{256} << 20;

inline ScoreUse score_use(const Plan& plan) {
  if (!plan.one_query_each) return ScoreUse::kPrefill;
  return plan.norm_stats ? ScoreUse::kDecodeWithNorms : ScoreUse::kDecode;
}

// The kernels that serve a launch.
ScoreKernel score_kernel(const AttentionParams& params, ScoreStage stage, int32_t column_tiles, ScoreUse use);
ScoreKernel exact_decode_kernel(const AttentionParams& params, int32_t column_tiles);
ShortDecodeKernel short_decode_kernel(const AttentionParams& params);
// Whether the device has room for it beside the index of the launch's sequences.
bool has_exact_decode(const AttentionParams& params, const DeviceLimits& limits);
ValueKernel dense_kernel(DType dtype, int32_t head_dim, Workers workers);
ValueKernel value_kernel(const AttentionParams& params, Workers workers);

// Requires a launch that validate_cuda accepts. Without queries there is nothing to launch and the workspace
// is only its header.
Plan make_plan(const AttentionParams& params, const LaunchBounds& bounds, const DeviceLimits& limits);

// Pieces of a decode row for the score kernel, or for that of dense sequences.
Divisor full_pieces(const Plan& plan, const ScorePlan& score);

// Arguments of the kernels of a launch's first pass, whose intermediate results lie in `workspace`.
Args make_args(const AttentionParams& params, const LaunchBounds& bounds, const Plan& plan, void* workspace);

}  // namespace allot::kernels::cuda
