#pragma once

#include "kernels/methods/row.h"

namespace allot::kernels::methods {

struct Exact {
  static constexpr EstimatorRow kRow{
      .name = "exact", .summary = "every key, nothing is sampled", .samples = false, .draws = false};
  static cuda::ValueKernel cuda_kernel(DType dtype, int32_t head_dim, cuda::Workers workers);
};

}  // namespace allot::kernels::methods
