#include "policy/multinomial.h"

#include <gmock/gmock.h>

#include <cmath>
#include <numeric>

namespace allot::policy {
namespace {

using ::testing::DoubleNear;
using ::testing::Each;

const std::vector<double> kLogits{0.3, -1.2, 2.0, 0.0, -0.4};

// Calls `visit` with every way to share `draws` out over `layers` layers.
template <class Visit>
void for_all_counts(size_t layers, int32_t draws, std::vector<int32_t>& prefix, const Visit& visit) {
  if (prefix.size() + 1 == layers) {
    prefix.push_back(draws);
    visit(prefix);
    prefix.pop_back();
    return;
  }
  for (int32_t here = 0; here <= draws; ++here) {
    prefix.push_back(here);
    for_all_counts(layers, draws - here, prefix, visit);
    prefix.pop_back();
  }
}

TEST(Multinomial, ScoreIsTheGradientOfTheLogProbability) {
  const std::vector<int32_t> counts{4, 0, 17, 2, 1};
  const std::vector<double> score = multinomial_score(counts, kLogits);
  for (size_t layer = 0; layer < kLogits.size(); ++layer) {
    constexpr double kStep = 1e-5;
    std::vector<double> up = kLogits;
    std::vector<double> down = kLogits;
    up[layer] += kStep;
    down[layer] -= kStep;
    const double slope =
        (multinomial_log_prob(counts, up) - multinomial_log_prob(counts, down)) / (2 * kStep);
    EXPECT_NEAR(score[layer], slope, 1e-6) << "layer " << layer;
  }
}

TEST(Multinomial, ProbabilitiesOfAllCountsSumToOneAndABaselineAddsNothingToTheExpectedGradient) {
  double probability = 0;
  std::vector<double> expected_score(kLogits.size());
  std::vector<int32_t> prefix;
  for_all_counts(kLogits.size(), 6, prefix, [&](const std::vector<int32_t>& counts) {
    const double chance = std::exp(multinomial_log_prob(counts, kLogits));
    const std::vector<double> score = multinomial_score(counts, kLogits);
    probability += chance;
    for (size_t layer = 0; layer < score.size(); ++layer) expected_score[layer] += chance * score[layer];
  });
  EXPECT_NEAR(probability, 1, 1e-12);
  EXPECT_THAT(expected_score, Each(DoubleNear(0, 1e-12)));  // so E[b * score] = 0 for every constant b
}

TEST(Multinomial, DrawsHaveTheSoftmaxAsTheirMean) {
  constexpr int kStreams = 2000;
  constexpr int kDraws = 50;
  std::vector<double> sums(kLogits.size());
  for (uint64_t number = 0; number < kStreams; ++number) {
    const auto counts = draw_multinomial(kLogits, kDraws, DrawStream(5, number, DrawPurpose::kMultinomial));
    ASSERT_EQ(std::accumulate(counts.begin(), counts.end(), 0), kDraws);
    for (size_t layer = 0; layer < counts.size(); ++layer) sums[layer] += counts[layer];
  }
  const std::vector<double> shares = softmax(kLogits);
  constexpr double kTotal = kStreams * kDraws;
  for (size_t layer = 0; layer < shares.size(); ++layer) {
    const double standard_error = std::sqrt(shares[layer] * (1 - shares[layer]) / kTotal);
    EXPECT_NEAR(sums[layer] / kTotal, shares[layer], 4 * standard_error) << "layer " << layer;
  }
}

TEST(Multinomial, ALayerWithoutAShareIsNeverDrawn) {
  const std::vector<double> logits{-2000, 0, -2000};
  EXPECT_THAT(draw_multinomial(logits, 100, DrawStream(1, 2, DrawPurpose::kMultinomial)),
              ::testing::ElementsAre(0, 100, 0));
}

TEST(DrawStream, DependsOnSeedNumberAndPurposeAlone) {
  const auto first = [](uint64_t seed, uint64_t number, DrawPurpose purpose) {
    return DrawStream(seed, number, purpose).uniform();
  };
  const double here = first(1, 2, DrawPurpose::kMultinomial);
  EXPECT_EQ(here, first(1, 2, DrawPurpose::kMultinomial));
  EXPECT_NE(here, first(2, 2, DrawPurpose::kMultinomial));
  EXPECT_NE(here, first(uint64_t{1} << 32 | 1, 2, DrawPurpose::kMultinomial));
  EXPECT_NE(here, first(1, 3, DrawPurpose::kMultinomial));
  EXPECT_NE(here, first(1, uint64_t{1} << 32 | 2, DrawPurpose::kMultinomial));
  EXPECT_NE(here, first(1, 2, DrawPurpose::kPerturbation));
}

}  // namespace
}  // namespace allot::policy
