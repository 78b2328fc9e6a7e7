#pragma once

#include "kernels/methods/row.h"

namespace allot::kernels::methods {

// S largest, renormalised (Appendix H); a biased baseline of the CPU.
struct Topk {
  static constexpr EstimatorRow kRow{.name = "topk",
                                     .summary = "the S largest alone; biased, on the CPU only",
                                     .draws = false,
                                     .cuda = false};
  static void select(std::span<const double> p, const Choice& choice, const DrawRow& draws,
                     std::vector<double>& weights);
};

}  // namespace allot::kernels::methods
