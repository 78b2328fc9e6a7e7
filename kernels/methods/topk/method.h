#pragma once

#include "kernels/methods/row.h"

namespace allot::kernels::methods {

// S largest, renormalised (S2ANTA paper, Appendix H); a biased baseline. Of equal ones the first keys.
struct Topk {
  static constexpr EstimatorRow kRow{
      .name = "topk", .summary = "the S largest alone; biased", .draws = false};
  static void select(std::span<const double> p, const Choice& choice, const DrawRow& draws,
                     std::vector<double>& weights);
  static cuda::ValueKernel cuda_kernel(DType dtype, int32_t head_dim, cuda::Workers workers);
};

}  // namespace allot::kernels::methods
