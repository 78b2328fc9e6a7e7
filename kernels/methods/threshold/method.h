#pragma once

#include "kernels/methods/row.h"

namespace allot::kernels::methods {

// Keys with p >= tau kept with their own weight, the rest drawn systematically with weight tau, S in all
// (VarOpt, Horvitz-Thompson); unbiased.
struct Threshold {
  static constexpr EstimatorRow kRow{.name = "threshold",
                                     .summary = "the largest kept with their weight, the rest evenly spaced"};
  static void select(std::span<const double> p, const Choice& choice, const DrawRow& draws,
                     std::vector<double>& weights);
  static cuda::ValueKernel cuda_kernel(DType dtype, int32_t head_dim, cuda::Workers workers);
};

}  // namespace allot::kernels::methods
