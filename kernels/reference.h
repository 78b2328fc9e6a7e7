// The slow, obvious twin of every attention kernel, in double precision and straight from the formulas of the
// S2ANTA paper (Appendices A, C, H, N, P, Q). It takes the same launches and the same Philox draws as the
// kernels, so it picks the same keys unless a target lies within rounding of a key's boundary. Tests and
// analyses use it; nothing else should.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/attention.h"

namespace allot::kernels::reference {

// One attention row of a launch.
struct Row {
  int64_t sequence = 0;  // 0 <= sequence < batch
  int64_t query = 0;     // 0-based among the queries that the sequence has in this launch
  int32_t head = 0;      // query head
};

// A key that contributes to a row, and the factor of its value vector.
struct Selected {
  int32_t key = 0;
  double weight = 0;
  friend bool operator==(const Selected&, const Selected&) = default;
};

// Keys the row sees: lengths[sequence] less the queries after it.
int32_t visible_keys(const AttentionParams& params, const Row& row);
// Coordinates of the row's draws; position = visible keys - 1.
DrawRow draw_row(const AttentionParams& params, const Row& row);
// The row's query after the score stage [head_dim]: the query itself, or its Bernoulli
// estimate (equations 8-13).
std::vector<double> score_query(const AttentionParams& params, const Row& row);
// Scores before the softmax [visible keys], scaled; of split keys by their high planes.
std::vector<double> scores(const AttentionParams& params, const Row& row);
// softmax(scores).
std::vector<double> softmax(std::span<const double> scores);
// The row's keys and values [visible keys][head_dim], one vector after the other.
std::vector<double> keys(const AttentionParams& params, const Row& row);
std::vector<double> values(const AttentionParams& params, const Row& row);

// How an estimator turns the probabilities of one head into weighted keys, in ascending order, each key at
// most once.
struct Selection {
  Estimator estimator = Estimator::kExact;
  int32_t budget = 0;  // in the unit below, 0 or kDenseBudget
  int32_t tile = 256;
  ParameterValues parameters = default_parameters();
  BudgetUnit unit = BudgetUnit::kSamples;
};
std::vector<Selected> select(std::span<const double> probabilities, const Selection& selection,
                             const DrawRow& draws);
// The same for a row of a launch, together with the heads that the estimator lets choose with it. Where the
// keys are split, weights are corrected by their low planes.
std::vector<Selected> select(const AttentionParams& params, const Row& row);

// Output of every row of the launch [num_queries, num_q_heads, head_dim]. Checks as validate() does; does
// not touch params.out.
std::vector<double> attend(const AttentionParams& params);

}  // namespace allot::kernels::reference
