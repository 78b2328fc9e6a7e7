// Which share of the value rows a causal prefill reads at least once, all queries together: table 11 of the
// S2ANTA paper (Appendix F), in its setting of normally distributed queries and keys.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

#include "evaluation/spacing.h"

namespace allot::evaluation {

struct CoverageSetting {
  int64_t keys = 1024;  // and queries: query i sees keys 0 .. i
  int64_t head_dim = 128;
  std::vector<int64_t> samples;  // of each query; every entry is measured on the same queries and keys
  int64_t heads = 32;            // independent repetitions, at least 2
  Spacing spacing = Spacing::kIndependent;
  uint32_t seed = 0;
  int threads = 0;  // 0 = all cores
};

// Share of the rows read, mean over heads with its standard error.
struct Coverage {
  int64_t samples = 0;
  double share = 0;
  double standard_error = 0;
};

// Elements of q and k are standard normal, scores q.k / sqrt(head_dim). In the order of setting.samples. The
// result depends on the setting alone, not on threads. `progress` is told how many heads are done, from any
// thread, one call at a time; empty results when `stop` was set before all were. Throws InvalidArgument where
// a number is too small.
std::vector<Coverage> measure_coverage(const CoverageSetting& setting,
                                       const std::function<void(int64_t heads)>& progress = {},
                                       const std::atomic<bool>* stop = nullptr);

// What independent draws come to in long sequences where all keys weigh alike: S / (S + 1). A draw of query n
// reads a given one of its n rows with chance 1 / n, so that no query from j to N reads row j with chance
// ((j - 1) / N)^S, whose mean over the rows is about 1 / (S + 1).
double expected_coverage(int64_t samples);

}  // namespace allot::evaluation
