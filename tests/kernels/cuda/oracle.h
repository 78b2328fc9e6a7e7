// What a launch on the GPU is measured with: the double-precision reference row by row, the error of a plain
// program in the launch's dtype, and the samples that went to other keys.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kernels/reference.h"

namespace allot::kernels::testing {

// body(i) for every i below `count`, on all cores. An exception fails the test.
void parallel_for(int64_t count, const std::function<void(int64_t)>& body);

std::vector<reference::Row> rows_of(const AttentionParams& host);
// Number of a row among all rows of its launch: its place in the output.
int64_t row_number(const AttentionParams& host, const reference::Row& row);

// Errors of rows against the reference, of the GPU and of a plain program that takes the same keys: float32
// scores and sums, weights and Bernoulli queries rounded to the launch's dtype as the operands of a matrix
// product are, one rounding of the output.
struct Comparison {
  double squared_error = 0, largest_error = 0;
  double plain_squared_error = 0, plain_largest_error = 0;
  int64_t rows = 0;
  int64_t sampled_rows = 0;
  int64_t other_keys = 0;      // sampled rows that took other keys; their errors are not counted
  int32_t heads_together = 1;  // query heads that choose together

  void add(const Comparison& other);
};

// `out` is the launch's output [num_queries, num_q_heads, head_dim].
Comparison compare(const AttentionParams& host, const std::vector<double>& out,
                   std::span<const reference::Row> rows);
Comparison compare(const AttentionParams& host, const std::vector<double>& out);

// Fails the test unless the root mean square error is at most twice the plain program's, the largest at most
// three times (a single bad row must not drown in the mean) and at most a share `other_keys` of the sampled
// rows took other keys, or two standard deviations more, which few rows may by chance. Where heads choose
// together, a draw that moves changes the rows of all of them, of some by so little that it passes for
// rounding: there the factors are 3 and 5, and `other_keys` counts draws instead of rows.
void expect_near_plain(const Comparison& total, double other_keys, const std::string& where);

// Samples of a row that went to other keys than the reference's.
struct Movement {
  double moved = 0;    // half the L1 distance of the counts; samples of no weight count for nothing
  double samples = 0;  // S
  double mass = 0;     // largest probability that a moved sample jumped over
  void add(const Movement& other);
};

// `weights` and `probabilities` of a row's keys, `selected` by the reference.
Movement movement(const reference::Selection& selection, std::span<const double> probabilities,
                  const std::vector<reference::Selected>& selected, std::span<const double> weights);

// How far the last sample that Algorithm 4 hands out by largest remainder was from going to another tile, in
// samples.
double remainder_gap(const reference::Selection& selection, std::span<const double> probabilities);

}  // namespace allot::kernels::testing
