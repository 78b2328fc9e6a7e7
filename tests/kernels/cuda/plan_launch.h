// Launches of bfloat16 to plan: shapes alone, without memory.
#pragma once

#include <cstdint>

#include "kernels/attention.h"
#include "kernels/attention_cuda.h"

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

}  // namespace allot::kernels::cuda
