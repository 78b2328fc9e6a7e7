// The bounds that fit a launch in host memory exactly.
#pragma once

#include <algorithm>

#include "kernels/attention_cuda.h"

namespace allot::kernels::testing {

inline LaunchBounds tight_bounds(const AttentionParams& host) {
  LaunchBounds bounds;
  if (host.batch == 0) return bounds;
  bounds.num_queries = host.query_start[host.batch];
  for (int64_t b = 0; b < host.batch; ++b) {
    const int64_t queries = host.query_start[b + 1] - host.query_start[b];
    bounds.max_queries = std::max(bounds.max_queries, static_cast<int32_t>(queries));
    bounds.max_length = std::max(bounds.max_length, host.lengths[b]);
    if (host.budgets == nullptr) continue;
    bounds.max_budget = std::max(bounds.max_budget, host.budgets[b]);
    bounds.any_dense = bounds.any_dense || host.budgets[b] == kDenseBudget;
  }
  return bounds;
}

}  // namespace allot::kernels::testing
