#include "policy/response_model.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>

#include "policy/perturbation.h"

namespace allot::policy {
namespace {

constexpr int kLayers = 6;
constexpr int64_t kTotal = 48;

TEST(ResponseCurves, FallFromLayersWithoutSamplesAndAgreeAtTheEvenPartAndAtHalfOfIt) {
  const ResponseCurves curves(kLayers, kTotal);
  for (size_t number = 0; number < curves.count(); ++number) {
    const auto curve = curves.curve(number);
    EXPECT_NEAR(curve[8], 0, 1e-12);
    EXPECT_NEAR(curve[4], 1, 1e-12);
    for (size_t samples = 1; samples < curve.size(); ++samples) {
      EXPECT_LT(curve[samples], curve[samples - 1]) << number << " at " << samples;
    }
  }
}

// Mean amplitudes of the chain's second half, over answers of layers that cost `amplitudes` / s.
std::vector<double> fitted(const std::vector<double>& amplitudes, uint64_t seed) {
  ResponseModel model(kLayers, kTotal);
  DrawStream answers(seed, 0, draw_purpose("test-answers"));
  for (int64_t number = 0; number < 400; ++number) {
    const std::vector<double> direction = perturbation_direction(kLayers, seed, number / 2);
    std::vector<double> shares;
    for (const double sign : direction) shares.push_back(std::exp(number % 2 == 0 ? sign : -sign));
    const Schedule schedule = apportion(shares, kTotal, 1);
    double logit = 1;
    for (size_t layer = 0; layer < kLayers; ++layer) logit -= amplitudes[layer] * 8 / schedule.samples[layer];
    double right = 0;
    for (int question = 0; question < 16; ++question) right += answers.uniform() < 1 / (1 + std::exp(-logit));
    model.add({schedule.samples, number / 8, right / 16, 16});
  }
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

TEST(ResponseModel, TheSameDrawsGiveTheSameStatesBitForBit) {
  EXPECT_EQ(fitted({0.5, 0.1, 0.1, 0.1, 0.1, 0.1}, 7), fitted({0.5, 0.1, 0.1, 0.1, 0.1, 0.1}, 7));
}

}  // namespace
}  // namespace allot::policy
