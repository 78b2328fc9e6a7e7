// Estimators whose samples each stand for a point of the row's CDF; they differ in the points alone.
#pragma once

#include "kernels/methods/row.h"

namespace allot::kernels::methods {

// S multinomial indices (S2ANTA paper, equation 4).
struct Iid {
  static constexpr EstimatorRow kRow{.name = "iid", .summary = "independent draws"};
  static void select(std::span<const double> p, const Choice& choice, const DrawRow& draws,
                     std::vector<double>& weights);
  static cuda::ValueKernel cuda_kernel(DType dtype, int32_t head_dim, cuda::Workers workers);
};

// One uniform per stratum of the CDF (Appendix A.3).
struct Strat {
  static constexpr EstimatorRow kRow{.name = "strat",
                                     .summary = "one draw in each of S equal parts of the row"};
  static void select(std::span<const double> p, const Choice& choice, const DrawRow& draws,
                     std::vector<double>& weights);
  static cuda::ValueKernel cuda_kernel(DType dtype, int32_t head_dim, cuda::Workers workers);
};

// One uniform offset for the row (Appendix A.3).
struct Sys {
  static constexpr EstimatorRow kRow{
      .name = "sys", .summary = "evenly spaced from one draw for the row", .counts_row = true};
  static void select(std::span<const double> p, const Choice& choice, const DrawRow& draws,
                     std::vector<double>& weights);
  static cuda::ValueKernel cuda_kernel(DType dtype, int32_t head_dim, cuda::Workers workers);
};

}  // namespace allot::kernels::methods
