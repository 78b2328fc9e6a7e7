// One decode step of allot's CUDA kernels over arrays of the benchmark.
#pragma once

#include <cstdint>
#include <span>

#include "bench/attention/device.h"
#include "bench/attention/pages.h"
#include "bench/attention/shapes.h"
#include "kernels/attention_cuda.h"

namespace allot::bench::attention {

// A batch of sequences on the device; the pointers belong to others and outlive the launch.
struct Batch {
  const Shape* shape = nullptr;
  std::span<const int32_t> lengths;
  std::span<const int32_t> budgets;
  kernels::DType dtype = kernels::DType::kBFloat16;
  const void* query = nullptr;        // [batch, num_q_heads, head_dim]
  const void* key_pages = nullptr;    // [num_pages, num_kv_heads, page_size, head_dim]
  const void* value_pages = nullptr;  // [num_pages, num_kv_heads, page_size, head_dim]
  const PagePlan* plan = nullptr;
};

class OwnLaunch {
 public:
  // Keys as they are, or split into planes of 8 bits (kernels/split_keys.h), of which the low one may be left
  // out. Throws what cuda_workspace_bytes throws.
  OwnLaunch(const Batch& batch, const kernels::AttentionMethod& method, KeyFormat keys, cudaStream_t stream);

  // Queues the step on the stream; where keys are split, queries are split by it.
  void queue() const;
  // Waits, and throws what check_cuda throws.
  void check_result() const;
  // [batch, num_q_heads, head_dim]
  const void* output() const { return out_.data(); }

 private:
  void split_keys(const Batch& batch, bool with_low_plane);

  cudaStream_t stream_;
  kernels::DeviceLimits limits_;
  kernels::LaunchBounds bounds_;
  DeviceBytes page_table_;
  DeviceBytes query_start_;
  DeviceBytes lengths_;
  DeviceBytes budgets_;
  DeviceBytes draws_;
  DeviceBytes value_norms_;                              // empty where the method has no use for them
  DeviceBytes high_, low_, query_planes_, query_units_;  // empty where keys are not split
  DeviceBytes out_;
  kernels::AttentionParams params_;
  kernels::SplitQueriesParams split_queries_;
  DeviceBytes workspace_;
};

}  // namespace allot::bench::attention
