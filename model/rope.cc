#include "model/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace allot::model {
namespace {

float scale_frequency(float frequency, const Llama3RopeScaling& scaling) {
  const double original = static_cast<double>(scaling.original_max_position_embeddings);
  const double wavelength = 2 * std::numbers::pi / frequency;
  if (wavelength < original / scaling.high_freq_factor) return frequency;
  if (wavelength > original / scaling.low_freq_factor) return static_cast<float>(frequency / scaling.factor);
  const double smooth = (original / wavelength - scaling.low_freq_factor) /
                        (scaling.high_freq_factor - scaling.low_freq_factor);
  return static_cast<float>((1 - smooth) * frequency / scaling.factor + smooth * frequency);
}

}  // namespace

std::vector<float> rope_frequencies(const ModelConfig& config) {
  std::vector<float> frequencies(config.head_dim / 2);
  for (int32_t i = 0; i < config.head_dim / 2; ++i) {
    // The exponent and the power are float32 there, too: a rounding here would grow with the position.
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(config.head_dim);
    frequencies[i] = 1.0f / static_cast<float>(std::pow(config.rope_theta, static_cast<double>(exponent)));
    if (config.rope_scaling) frequencies[i] = scale_frequency(frequencies[i], *config.rope_scaling);
  }
  return frequencies;
}

RopeTable::RopeTable(const ModelConfig& config) : frequencies_(rope_frequencies(config)) {}

void RopeTable::extend_to(int64_t positions) {
  if (positions <= rows_) return;
  // Doubling keeps the cost of many small extensions linear.
  const int64_t rows = std::max(positions, 2 * rows_);
  cos_.reserve(rows * frequencies_.size());
  sin_.reserve(rows * frequencies_.size());
  for (; rows_ < rows; ++rows_) {
    for (float frequency : frequencies_) {
      const float angle = static_cast<float>(rows_) * frequency;
      cos_.push_back(std::cos(angle));
      sin_.push_back(std::sin(angle));
    }
  }
}

}  // namespace allot::model
