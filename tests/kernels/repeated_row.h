// One attention row estimated many times under different draws: what the statistical tests of the CPU and of
// the CUDA kernels measure.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/reference.h"
#include "launch.h"

namespace allot::kernels::testing {

inline constexpr reference::Row kFirstRow{0, 0, 0};

// A launch of `repeats` sequences that read the pages and the query of the first, one head each.
LaunchSpec repeated_row(const Sequence& row, int32_t repeats, int32_t head_dim, double score_deviation,
                        uint32_t seed);

// Exact attention of the first row, in double.
std::vector<double> exact_output(const AttentionParams& params);

struct Estimates {
  std::vector<double> exact;
  MeanEstimate output;
  MeanEstimate squared_error;  // its mean is the trace of the covariance when the estimator is unbiased
};
// `outputs` [repeats, head_dim] of a launch of repeated_row.
Estimates estimates_of(const AttentionParams& params, const std::vector<double>& outputs);

}  // namespace allot::kernels::testing
