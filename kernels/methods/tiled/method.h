// Estimators that share the budget out among tiles and sample systematically in each.
#pragma once

#include "kernels/methods/row.h"

namespace allot::kernels::methods {

// Budgets by largest remainder of the tiles' mass (Algorithms 2-5); biased when S is small.
struct Prop {
  static constexpr EstimatorRow kRow{
      .name = "prop", .summary = "tiles get samples by their mass; biased at few samples", .tiled = true};
  static void select(std::span<const double> p, const Choice& choice, const DrawRow& draws,
                     std::vector<double>& weights);
  static cuda::ValueKernel cuda_kernel(DType dtype, int32_t head_dim, cuda::Workers workers);
};

// The same number in every tile, FlashDecoding merge (Algorithms 6-8).
struct Flash {
  static constexpr EstimatorRow kRow{.name = "flash",
                                     .summary = "every tile gets the same number of samples, at least one",
                                     .tiled = true,
                                     .sample_in_every_tile = true};
  static void select(std::span<const double> p, const Choice& choice, const DrawRow& draws,
                     std::vector<double>& weights);
  static cuda::ValueKernel cuda_kernel(DType dtype, int32_t head_dim, cuda::Workers workers);
};

}  // namespace allot::kernels::methods
