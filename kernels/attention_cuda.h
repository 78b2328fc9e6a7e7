// Attention on a CUDA GPU: the launch of attention.h with arrays in device memory. Decode (one query a
// sequence) and prefill are the same call. A launch reads every key once, keeps the weights of the keys
// in the workspace, draws the samples and reads only the value rows drawn (S2ANTA paper, Algorithms
// 2-8; the same draws as the CPU kernels and reference.h). Raw pointers only; nothing here
// allocates tensors or knows LibTorch.
//
// A launch allocates nothing, never waits for the device, and may be captured in a CUDA graph: lengths,
// budgets, pages and draws are read from device memory when the graph runs, so a captured decode step stays
// valid while sequences grow within its bounds.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention.h"

struct CUstream_st;  // cudaStream_t without the CUDA headers

namespace allot::kernels {

using CudaStream = CUstream_st*;

// Longest sequence and largest batch of a CUDA launch.
inline constexpr int32_t kMaxCudaLength = 262144;
inline constexpr int32_t kMaxCudaBatch = 8192;

// What the host must know about arrays that live on the device. Grids and workspace follow from these alone.
struct LaunchBounds {
  int64_t num_queries = 0;  // query_start[batch]
  int32_t max_queries = 1;  // most queries of one sequence; 1 = decode
  int32_t max_length = 0;   // no lengths[b] is larger; at most kMaxCudaLength
  int32_t max_budget = 0;   // no budgets[b] is larger; at most kMaxCudaLength; ignored by exact
  bool any_dense = false;   // some budgets[b] may be kDenseBudget
  // For decode: lengths, budgets, page_table, and all keys and values but those of the last position of each
  // sequence were written by work that had ended before any kernel began that can still run when this launch
  // starts, as everything is that earlier steps have written. The launch then looks up and asks for its first
  // keys while the kernels before it end.
  bool settled_keys = false;
};

// The properties of a GPU that plans depend on.
struct DeviceLimits {
  int32_t compute_capability = 0;      // 90 for 9.0; that of the kernels' code where this is of less
  int32_t multiprocessors = 0;         // 132 on an H200
  int32_t shared_bytes_per_block = 0;  // opt-in maximum, 232448 on an H200
};

// Of a device by its ordinal and of the code for it. Throws CudaError when there is no such device, or no
// code.
DeviceLimits device_limits(int device);

// Memory for intermediate results that a launch's kernels pass on. Only one launch at a time may use it:
// launches on several streams need a workspace each.
struct CudaWorkspace {
  void* data = nullptr;  // device memory, aligned to 256 bytes
  size_t bytes = 0;
};

// Clears the header of a workspace, about 5 MB: the record of faults, and counters that every launch leaves
// at zero. Call it once before the first launch, and after a launch that the device aborted. The rest of the
// workspace need not be set.
void reset_cuda_workspace(CudaWorkspace workspace, CudaStream stream);

// Bytes attend_cuda needs for any launch within `bounds`. The weights of one pass over the keys dominate: 2
// bytes a key and query head. Throws as validate_cuda does.
size_t cuda_workspace_bytes(const AttentionParams& params, const LaunchBounds& bounds,
                            const DeviceLimits& limits);

// Checks what the host can see: shapes, alignment, bounds, the estimator and its options. Pointers are not
// dereferenced. Throws InvalidArgument with the values and the remedy, Unsupported for anything without a
// CUDA kernel (float32, other head dimensions than 32, 64, 96, 128 and 256, head groups above 16, pages
// that are not a multiple of 16 tokens). A caller that has host copies of the arrays can check their content
// with validate() of attention.h.
void validate_cuda(const AttentionParams& params, const LaunchBounds& bounds, const DeviceLimits& limits);

// Queues one launch on `stream`; every pointer of `params` is device memory of the current device. Shapes as
// in AttentionParams; a contiguous cache [batch, num_kv_heads, capacity, head_dim] is one page of `capacity`
// tokens a sequence. Query, pages and out are bfloat16 or float16, aligned to 16 bytes; sums are float32.
//
// Deterministic: a row depends on its own data, budget and draw coordinates, not on batch mates, page numbers
// or scheduling. The bounds choose between two kernels for small budgets (max_budget at most 32 and a short
// max_length) and others; they pick the same keys and may differ in the last bit of a sum. Exact attention of
// a sequence with a single query is added up in another order than that of a prompt, and in launches of more
// than some thousand sequences (3,100 with head_dim 128 on an H200) by fewer warps, in another order again.
//
// Within a launch, rows are sampled as soon as their keys are read, while those of others are still being
// read, on GPUs of compute capability 9.0 and newer.
//
// Content that contradicts the bounds (a length above max_length, a page outside the pool, a budget above
// max_budget, flash with fewer samples than tiles) is found on the device: the sequence's output is NaN and
// the first fault is kept in the workspace until check_cuda reads it. Throws as validate_cuda does,
// InvalidArgument for a workspace that is too small or misaligned, CudaError when the launch is refused.
void attend_cuda(const AttentionParams& params, const LaunchBounds& bounds, const DeviceLimits& limits,
                 CudaWorkspace workspace, CudaStream stream);

// Waits for `stream` and throws InvalidArgument naming sequence and value when a launch with this workspace
// found a fault since the last check, CudaError when the device failed.
void check_cuda(CudaWorkspace workspace, CudaStream stream);

}  // namespace allot::kernels
