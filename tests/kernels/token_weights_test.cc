#include "kernels/token_weights.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace allot::kernels {
namespace {

TEST(TokenWeight, IsTheExponentialOfTheScaledDistanceToTheLargestLogit) {
  for (const float temperature : {0.05f, 0.6f, 1.0f, 3.7f}) {
    const float scale = weight_scale(temperature);
    const float largest = 13.25f;
    for (int i = 0; i <= 300'000; ++i) {
      const float logit = largest - 22.0f * temperature * static_cast<float>(i) / 300'000;
      const double expected = 0x1p31 * std::exp((static_cast<double>(logit) - largest) / temperature);
      const uint32_t weight = token_weight(logit, largest, scale);
      ASSERT_NEAR(weight, expected, 1 + 6e-6 * expected) << "logit " << logit << " at " << temperature;
      ASSERT_LE(weight, kLargestTokenWeight);
    }
  }
}

TEST(TokenWeight, OfTheLargestLogitIsTheLargestWeightAtEveryTemperature) {
  for (const float temperature : {std::numeric_limits<float>::denorm_min(), 1e-30f, 0.6f, 1.0f, 1e30f,
                                  std::numeric_limits<float>::max()}) {
    for (const float largest : {-3e38f, -1.0f, 0.0f, 17.3f, 3e38f}) {
      EXPECT_EQ(token_weight(largest, largest, weight_scale(temperature)), kLargestTokenWeight)
          << largest << " at " << temperature;
    }
  }
}

TEST(TokenWeight, IsZeroFarBelowTheLargestLogit) {
  for (const float logit : {-21.6f, -100.0f, -3e38f, -INFINITY}) {
    EXPECT_EQ(token_weight(logit, 0, weight_scale(1)), 0u) << logit;
  }
  EXPECT_EQ(token_weight(-21.4f, 0, weight_scale(1)), 1u);
}

TEST(NucleusMass, IsTopPOfTheTotalRoundedUpAndNeverNothing) {
  EXPECT_EQ(nucleus_mass(1000, 0.5f), 500u);
  EXPECT_EQ(nucleus_mass(1001, 0.5f), 501u);
  EXPECT_EQ(nucleus_mass(1000, 1e-30f), 1u);
  EXPECT_EQ(nucleus_mass(1000, 1.0f), 1000u);
  const uint64_t whole_vocabulary = uint64_t{kLargestTokenWeight} << 18;
  EXPECT_EQ(nucleus_mass(whole_vocabulary, 1.0f), whole_vocabulary);
}

TEST(NucleusTies, AreAsManyAsReachTheMass) {
  EXPECT_EQ(nucleus_ties(100, 70, 10), 3u);
  EXPECT_EQ(nucleus_ties(101, 70, 10), 4u);
  EXPECT_EQ(nucleus_ties(1, 0, kLargestTokenWeight), 1u);
}

TEST(TargetMass, IsTheRandomPartOfTheMassWithoutOverflow) {
  EXPECT_EQ(target_mass(uint64_t{1} << 40, 0x80000000u), uint64_t{1} << 39);
  EXPECT_EQ(target_mass(1, 0xFFFFFFFFu), 0u);
  const uint64_t mass = (uint64_t{1} << 62) + 12345;
  const auto exact = static_cast<uint64_t>((static_cast<unsigned __int128>(mass) * 0xFFFFFFFFu) >> 32);
  EXPECT_EQ(target_mass(mass, 0xFFFFFFFFu), exact);
}

}  // namespace
}  // namespace allot::kernels
