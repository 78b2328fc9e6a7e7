// How far Bernoulli estimates of a query take its scores, and how much of the keys they read: figure 6 of the
// S2ANTA paper (Appendix C) in its setting of normally distributed queries and keys.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <vector>

namespace allot::evaluation {

struct BernoulliSetting {
  int64_t keys = 1024;
  int64_t head_dim = 128;
  // Query heads that share a KV head. With more than one they draw once, by their mean query (Appendix C.2).
  int64_t group = 1;
  std::vector<int64_t> budgets;  // B, draws of an element
  bool stratified = false;       // a draw in each of B equal strata instead of independent ones
  int64_t instances = 100;       // queries, each with keys of its own, at least 2
  uint32_t seed = 0;
  int threads = 0;  // 0 = all cores
};

// Means over the instances.
struct BernoulliError {
  int64_t budget = 0;
  double error = 0;  // |estimated - exact scores| / |exact scores|, Euclidean norms over the keys
  double standard_error = 0;
  double features = 0;  // share of the elements of a key that some head of the group drew
  double sectors = 0;   // share of the sectors of 16 elements in which one was drawn
};

// q has standard normal elements, k normal ones of variance 1 / head_dim. In the order of setting.budgets;
// the result depends on the setting alone, not on threads, and queries and keys are the same for every budget
// and kind of draws. `progress` is told how many instances are done, from any thread, one call at a time;
// empty results when `stop` was set before all were. Throws InvalidArgument where a number is too small.
std::vector<BernoulliError> measure_bernoulli(const BernoulliSetting& setting,
                                              const std::function<void(int64_t instances)>& progress = {},
                                              const std::atomic<bool>* stop = nullptr);

}  // namespace allot::evaluation
