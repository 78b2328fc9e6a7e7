// Launches of bfloat16 to plan: shapes alone, without memory, and devices to plan them for.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/attention.h"
#include "kernels/attention_cuda.h"
#include "tests/kernels/cuda/device_limits.h"

namespace allot::kernels::cuda {

struct Shape {
  Estimator estimator = Estimator::kSys;
  int64_t batch = 1;
  int32_t group = 4;
  int32_t num_kv_heads = 8;
  int32_t head_dim = 128;
};

inline AttentionParams launch(const Shape& shape) {
  AttentionParams p;
  p.batch = shape.batch;
  p.num_q_heads = shape.group * shape.num_kv_heads;
  p.num_kv_heads = shape.num_kv_heads;
  p.head_dim = shape.head_dim;
  p.page_size = 16;
  p.max_pages = kMaxCudaLength / 16;
  p.num_pages = 1 << 20;
  p.dtype = DType::kBFloat16;
  p.scale = 0.1f;
  p.query_stride = int64_t{p.num_q_heads} * p.head_dim;
  p.method.estimator = shape.estimator;
  return p;
}

// Compute capability, multiprocessors and opt-in shared memory of an A100, an RTX A6000, an RTX 4090 and an
// H200.
inline constexpr DeviceLimits kDevices[] = {
    {.compute_capability = 80, .multiprocessors = 108, .shared_bytes_per_block = 163 * 1024},
    {.compute_capability = 86, .multiprocessors = 84, .shared_bytes_per_block = 99 * 1024},
    {.compute_capability = 89, .multiprocessors = 128, .shared_bytes_per_block = 99 * 1024},
    kH200,
};
inline constexpr int32_t kHeadDims[] = {32, 64, 96, 128, 256};
inline constexpr int32_t kGroups[] = {1, 4, 7, 8, 16};

inline LaunchBounds decode(int64_t batch, int32_t max_length, int32_t max_budget = 128) {
  return {.num_queries = batch, .max_queries = 1, .max_length = max_length, .max_budget = max_budget};
}

inline std::string describe(const AttentionParams& p, const LaunchBounds& b) {
  return std::string(name(p.method.estimator)) + " batch " + std::to_string(p.batch) + " heads " +
         std::to_string(p.num_q_heads) + "/" + std::to_string(p.num_kv_heads) + " head_dim " +
         std::to_string(p.head_dim) + " num_queries " + std::to_string(b.num_queries) + " max_queries " +
         std::to_string(b.max_queries) + " max_length " + std::to_string(b.max_length) + " max_budget " +
         std::to_string(b.max_budget) + (b.any_dense ? " any_dense" : "");
}

}  // namespace allot::kernels::cuda
