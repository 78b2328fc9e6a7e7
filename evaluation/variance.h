// How far sampled attention lies from exact attention on one query, and how many value rows it reads: figure
// 7 and table 20 of the S2ANTA paper with the formulas of its Appendix N, on random states.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "evaluation/attention_states.h"
#include "evaluation/spacing.h"

namespace allot::evaluation {

struct VarianceSetting {
  int64_t keys = 8192;
  int64_t head_dim = 64;
  double score_deviation = 1;  // standard deviation of the scores: 1 is flat, 4 peaked
  std::vector<int64_t> samples;
  int64_t heads = 8;        // with weights and values of their own
  int64_t replicates = 64;  // estimates of each head, at least 2
  Spacing spacing = Spacing::kIndependent;
  uint32_t seed = 0;
  int threads = 0;  // 0 = all cores
  // In place of random ones: keys, head_dim and heads are theirs then, whatever is said here, and scores have
  // no deviation.
  const AttentionStates* states = nullptr;
};

// The setting with the keys, head_dim and heads of its states, where it has any.
VarianceSetting with_numbers_of_states(const VarianceSetting& setting);

// A mean over heads and replicates, and what a formula says; none where there is no formula.
struct Measured {
  double mean = 0;
  double standard_error = 0;  // of the replicates, for these heads
  std::optional<double> formula = {};
  // Standard errors by which the mean lies above the formula.
  std::optional<double> z() const;
};

struct Variance {
  int64_t samples = 0;
  Measured squared_error;  // |estimate - exact|^2, whose mean is the trace of the estimator's covariance
  Measured rows;           // distinct value rows read
};

// Scores are normal with the deviation of the setting, values standard normal; a head's are the same for
// every budget and spacing. In the order of setting.samples; the result depends on the setting alone, not on
// threads. `progress` is told how many heads are done, from any thread, one call at a time; empty results
// when `stop` was set before all were. Throws InvalidArgument where a number is too small.
std::vector<Variance> measure_variance(const VarianceSetting& setting,
                                       const std::function<void(int64_t heads)>& progress = {},
                                       const std::atomic<bool>* stop = nullptr);

// How far estimates stray, and what Theorem B.1 of the paper promises of independent draws: with a chance of
// 1 - delta, |estimate - exact| is at most the bound. Means over heads.
struct Tail {
  int64_t samples = 0;
  double delta = 0;
  double bound = 0;
  double quantile = 0;  // of |estimate - exact| at 1 - delta, as measured
  double beyond = 0;    // share of the estimates that lie beyond the bound
};

// Of the same states and estimates as measure_variance; ordered by samples, then by `deltas`, each of which
// lies between 0 and 1. Throws InvalidArgument for others.
std::vector<Tail> measure_tails(const VarianceSetting& setting, std::span<const double> deltas,
                                const std::function<void(int64_t heads)>& progress = {},
                                const std::atomic<bool>* stop = nullptr);

// Slope of log(squared error) over log(samples) by least squares, of the formula where there is one, else of
// what was measured. -1 where each further sample counts like those before. None for fewer than two budgets.
std::optional<double> slope(std::span<const Variance> variances);

// Theorem B.1: how far the mean of independent samples lies from exact attention at most, but for a chance of
// delta. `variance` is that of one sample, `largest` the largest distance of a value from the mean.
double bernstein_bound(double variance, double largest, int64_t samples, double delta);
// Distinct rows that are read of weights that sum to 1, in the mean: a key of weight w lies between two of
// the points of sys with chance S w where that is below 1, always else; under strat its strata are
// independent.
double expected_rows(std::span<const double> weights, Spacing spacing, int64_t samples);

}  // namespace allot::evaluation
