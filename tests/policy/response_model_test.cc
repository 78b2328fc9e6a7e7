#include "policy/response_model.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "policy/perturbation.h"

namespace allot::policy {
namespace {

constexpr int kLayers = 6;
constexpr int64_t kTotal = 48;

constexpr auto kSmooth = ResponseCurves::Form::kSmooth;
constexpr auto kSteps = ResponseCurves::Form::kSteps;

TEST(ResponseCurves, SmoothOnesFallFromLayersWithoutSamplesAndAgreeAtTheEvenPartAndAtHalfOfIt) {
  const ResponseCurves curves(kSmooth, kLayers, kTotal);
  EXPECT_EQ(curves.needs(), 1);
  for (size_t shape = 0; shape < curves.shapes(); ++shape) {
    const auto curve = curves.curve(shape);
    EXPECT_NEAR(curve[8], 0, 1e-12);
    EXPECT_NEAR(curve[4], 1, 1e-12);
    for (size_t samples = 1; samples < curve.size(); ++samples) {
      EXPECT_LT(curve[samples], curve[samples - 1]) << shape << " at " << samples;
    }
  }
}

TEST(ResponseCurves, StepsFallWhereTheNeedIsMetFromSharpToSoft) {
  const ResponseCurves curves(kSteps, kLayers, kTotal);
  ASSERT_EQ(curves.needs(), 1 + 32);
  for (size_t shape = 0; shape < curves.shapes(); ++shape) {
    EXPECT_THAT(curves.curve(shape, 0), ::testing::Each(0));
    for (const size_t need : {size_t{1}, size_t{9}, curves.needs() - 1}) {
      const auto curve = curves.curve(shape, need);
      ASSERT_EQ(curve.size(), kTotal + 1);
      EXPECT_NEAR(curve[need - 1] + curve[need], 1, 1e-12) << shape << ", " << need;
      EXPECT_GT(curve[need - 1], 0.5);
      EXPECT_EQ(curve[need], curves.curve(shape, 1)[1]) << "the same step elsewhere";
      if (shape == 0) continue;
      EXPECT_LT(curve[need - 1], curves.curve(shape - 1, need)[need - 1]) << "softer";
    }
  }
}

// What a layer costs with a number of samples.
using CostOfLayer = std::function<double(size_t layer, int32_t samples)>;

// A model that has learned 400 outcomes whose logit is 1 less the costs, of perturbations of these widths in
// turn.
ResponseModel model_of(ResponseCurves::Form form, const CostOfLayer& cost, const std::vector<double>& widths,
                       uint64_t seed) {
  ResponseModel model(form, kLayers, kTotal);
  DrawStream answers(seed, 0, draw_purpose("test-answers"));
  for (int64_t number = 0; number < 400; ++number) {
    const std::vector<double> direction = perturbation_direction(kLayers, seed, number / 2);
    std::vector<double> shares;
    const double width = (number % 2 == 0 ? 1 : -1) * widths[static_cast<size_t>(number / 2) % widths.size()];
    for (const double sign : direction) shares.push_back(std::exp(width * sign));
    const Schedule schedule = apportion(shares, kTotal, 1);
    double logit = 1;
    for (size_t layer = 0; layer < kLayers; ++layer) logit -= cost(layer, schedule.samples[layer]);
    double right = 0;
    for (int question = 0; question < 16; ++question) right += answers.uniform() < 1 / (1 + std::exp(-logit));
    model.add({schedule.samples, number / 8, right / 16, 16});
  }
  return model;
}

// Mean amplitudes of the chain's second half, over answers of layers that cost `amplitudes` / s.
std::vector<double> fitted(const std::vector<double>& amplitudes, uint64_t seed) {
  const CostOfLayer cost = [&](size_t layer, int32_t samples) { return amplitudes[layer] * 8 / samples; };
  ResponseModel model = model_of(kSmooth, cost, {1}, seed);
  DrawStream draws(seed, 1, draw_purpose("test-chain"));
  ResponseModel::State state = model.prior_draw(draws);
  std::vector<double> mean(kLayers);
  for (int sweep = 0; sweep < 600; ++sweep) {
    model.sweep(draws, &state);
    if (sweep < 300) continue;
    for (size_t layer = 0; layer < kLayers; ++layer)
      mean[layer] += std::exp(state.log_amplitudes[layer]) / 300;
  }
  return mean;
}

TEST(ResponseModel, FindsHowMuchEachLayerMatters) {
  // Half the samples of 8 / s cost as much again as all.
  const std::vector<double> truth{0.8, 0.02, 0.4, 0.02, 0.02, 0.02};
  const std::vector<double> mean = fitted(truth, 5);
  for (size_t layer = 0; layer < kLayers; ++layer) EXPECT_NEAR(mean[layer], truth[layer], 0.12) << layer;
}

TEST(ResponseModel, KeepsEqualLayersNearlyEqual) {
  // The scale of all of them depends on the curve.
  const std::vector<double> mean = fitted(std::vector<double>(kLayers, 0.3), 6);
  EXPECT_LT(std::ranges::max(mean) / std::ranges::min(mean), 1.3);
  EXPECT_LT(std::ranges::max(mean), 1);
}

TEST(ResponseModel, FindsTheNeedsOfLayersThatFailBelowThem) {
  constexpr int32_t kNeeds[] = {12, 0, 9, 0, 0, 0};
  const CostOfLayer cost = [&](size_t layer, int32_t samples) { return samples < kNeeds[layer] ? 1.5 : 0; };
  ResponseModel model = model_of(kSteps, cost, {0.15, 0.3, 0.5, 0.8}, 8);
  DrawStream draws(8, 1, draw_purpose("test-chain"));
  ResponseModel::State state = model.prior_draw(draws);
  std::vector<double> costs(kLayers * (kTotal + 1));
  for (int sweep = 0; sweep < 800; ++sweep) {
    model.sweep(draws, &state);
    if (sweep >= 400) model.add_costs(state, 1.0 / 400, costs);
  }
  // More in a layer is less in the others, so that what all layers cost alike cannot be told from the
  // intercept.
  const auto rise = [&](size_t layer, size_t fewer, size_t more) {
    const double* of_layer = costs.data() + layer * (kTotal + 1);
    return of_layer[fewer] - of_layer[more];
  };
  const double common = (rise(1, 4, 14) + rise(3, 4, 14) + rise(4, 4, 14) + rise(5, 4, 14)) / 4;
  EXPECT_NEAR(rise(0, 4, 14) - common, 1.5, 0.4);
  EXPECT_NEAR(rise(2, 4, 14) - common, 1.5, 0.4);
  // Where the steps lie.
  EXPECT_LT(rise(0, 4, 9), 0.5);
  EXPECT_GT(rise(0, 9, 14), 1);
  EXPECT_GT(rise(2, 6, 10), 1);
}

TEST(ResponseModel, TheSameDrawsGiveTheSameStatesBitForBit) {
  EXPECT_EQ(fitted({0.5, 0.1, 0.1, 0.1, 0.1, 0.1}, 7), fitted({0.5, 0.1, 0.1, 0.1, 0.1, 0.1}, 7));
}

}  // namespace
}  // namespace allot::policy
