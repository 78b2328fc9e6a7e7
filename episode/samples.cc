#include "episode/samples.h"

#include <algorithm>

namespace allot {

std::string layer_text(int32_t samples) {
  return samples == kExactLayer ? std::string(kExactLayerText) : std::to_string(samples);
}

std::string layers_text(std::span<const int32_t> samples) {
  std::string text;
  for (const int32_t layer : samples) {
    if (!text.empty()) text += ',';
    text += layer_text(layer);
  }
  return text;
}

int64_t total_samples(std::span<const int32_t> samples) {
  int64_t total = 0;
  for (const int32_t layer : samples) total += layer == kExactLayer ? 0 : layer;
  return total;
}

int64_t exact_layers(std::span<const int32_t> samples) {
  return std::ranges::count(samples, kExactLayer);
}

int64_t sampled_layers(std::span<const int32_t> samples) {
  return std::ssize(samples) - exact_layers(samples);
}

}  // namespace allot
