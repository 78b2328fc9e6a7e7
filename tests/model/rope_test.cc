#include "model/rope.h"

#include <gtest/gtest.h>

#include <cmath>

namespace allot::model {
namespace {

ModelConfig config_with(int32_t head_dim, double theta) {
  ModelConfig config;
  config.head_dim = head_dim;
  config.rope_theta = theta;
  return config;
}

TEST(RopeFrequencies, FallGeometricallyFromOne) {
  const std::vector<float> frequencies = rope_frequencies(config_with(8, 10000));
  ASSERT_EQ(frequencies.size(), 4u);
  for (int i = 0; i < 4; ++i) EXPECT_NEAR(frequencies[i], std::pow(10000.0, -i / 4.0), 1e-7);
}

TEST(RopeFrequencies, Llama3ScalingKeepsShortWavesAndStretchesLongOnes) {
  ModelConfig config = config_with(64, 10000);
  const std::vector<float> plain = rope_frequencies(config);
  config.rope_scaling = Llama3RopeScaling{
      .factor = 8, .low_freq_factor = 1, .high_freq_factor = 4, .original_max_position_embeddings = 256};
  const std::vector<float> scaled = rope_frequencies(config);
  int kept = 0, blended = 0, stretched = 0;
  for (size_t i = 0; i < plain.size(); ++i) {
    const double wavelength = 2 * M_PI / plain[i];
    if (wavelength < 256.0 / 4) {
      EXPECT_EQ(scaled[i], plain[i]);
      ++kept;
    } else if (wavelength > 256.0) {
      EXPECT_FLOAT_EQ(scaled[i], plain[i] / 8);
      ++stretched;
    } else {
      EXPECT_LT(scaled[i], plain[i]);
      EXPECT_GT(scaled[i], plain[i] / 8);
      ++blended;
    }
  }
  EXPECT_GT(kept, 0);
  EXPECT_GT(blended, 0);
  EXPECT_GT(stretched, 0);
}

TEST(RopeTable, GrowsWithoutChangingWhatItHeld) {
  const ModelConfig config = config_with(8, 100);
  RopeTable grown(config), whole(config);
  for (int64_t positions : {1, 5, 40}) grown.extend_to(positions);
  whole.extend_to(40);
  ASSERT_GE(grown.rows(), 40);
  for (int i = 0; i < 40 * 4; ++i) {
    EXPECT_EQ(grown.cos()[i], whole.cos()[i]);
    EXPECT_EQ(grown.sin()[i], whole.sin()[i]);
  }
  EXPECT_FLOAT_EQ(whole.cos()[39 * 4], std::cos(39.0f));
  EXPECT_FLOAT_EQ(whole.sin()[39 * 4], std::sin(39.0f));
}

}  // namespace
}  // namespace allot::model
