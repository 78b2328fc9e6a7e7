#include "model/layer_execution.h"

#include <gtest/gtest.h>

#include "episode/samples.h"

namespace allot::model {
namespace {

using kernels::AttentionMethod;
using kernels::BudgetUnit;
using kernels::Estimator;

constexpr int32_t kLayers = 3;

// Positions 2 and 3 of one sequence under a schedule, position 0 of a dense one.
ForwardBatch batch_of(const std::vector<int32_t>& samples) {
  static const std::vector<int32_t> tokens{10, 11, 12, 13}, first_pages{0, 1}, second_pages{2};
  const std::vector<SequencePart> parts{
      {.tokens = tokens, .begin = 2, .end = 4, .pages = first_pages, .samples = samples, .first_output = 3},
      {.tokens = tokens, .begin = 0, .end = 1, .pages = second_pages, .first_output = 1}};
  return make_batch(parts, kLayers, /*page_size=*/2);
}

std::vector<LayerExecution> count(const AttentionMethod& method, const std::vector<int32_t>& samples) {
  std::vector<LayerExecution> layers(kLayers);
  count_pass(batch_of(samples), method, /*num_q_heads=*/6, /*num_kv_heads=*/2, layers);
  return layers;
}

TEST(LayerExecution, CountsTokensSamplesAndTheRowsThatTheyMayRead) {
  const auto layers = count({.estimator = Estimator::kJoint}, {1, kExactLayer, 5});
  // Three heads a group draw a row each: of 3 keys and of 4.
  const LayerExecution first{.sampled_tokens = 2, .exact_tokens = 1, .samples = 2, .row_limit = 2 * (3 + 3)};
  EXPECT_EQ(layers[0], first);
  EXPECT_EQ(layers[1], (LayerExecution{.exact_tokens = 3}));
  const LayerExecution last{.sampled_tokens = 1, .samples = 5, .row_limit = 2 * 4};
  EXPECT_EQ(layers[2], last) << "only the output row";
}

TEST(LayerExecution, EveryTokenIsExactUnderTheExactEstimator) {
  for (const LayerExecution& layer : count({.estimator = Estimator::kExact}, {1, 2, 3}))
    EXPECT_EQ(layer.samples + layer.sampled_tokens + layer.row_limit, 0);
}

TEST(LayerExecution, ARowLimitIsAtMostTheKeysAndOneMoreForLevel) {
  const auto limit = [](Estimator estimator, BudgetUnit unit, int64_t budget, int64_t keys) {
    return row_limit({.estimator = estimator, .unit = unit}, budget, /*group=*/3, keys);
  };
  EXPECT_EQ(limit(Estimator::kJoint, BudgetUnit::kSamples, 4, 100), 12);
  EXPECT_EQ(limit(Estimator::kJoint, BudgetUnit::kRows, 4, 100), 4);
  EXPECT_EQ(limit(Estimator::kLevel, BudgetUnit::kRows, 4, 100), 5);
  EXPECT_EQ(limit(Estimator::kLevel, BudgetUnit::kRows, 4, 3), 3);
  EXPECT_EQ(limit(Estimator::kSys, BudgetUnit::kSamples, 4, 7), 7);
  EXPECT_EQ(limit(Estimator::kLevel, BudgetUnit::kSamples, 0, 7), 0);
}

}  // namespace
}  // namespace allot::model
