// What a schedule gives a layer: a number of samples, or exact attention. Lists of such entries travel in
// episodes, are stored, and are printed by everything that shows a schedule.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace allot {

// Stands where a number of samples would: the attention of this layer is exact. Totals, means and floors are
// of the other layers, those that sample.
inline constexpr int32_t kExactLayer = -1;
inline constexpr std::string_view kExactLayerText = "exact";

// "8", "exact".
std::string layer_text(int32_t samples);
// "exact,8,7": layer 0, 1, …
std::string layers_text(std::span<const int32_t> samples);

// The sum over the layers that sample.
int64_t total_samples(std::span<const int32_t> samples);
int64_t exact_layers(std::span<const int32_t> samples);
// Layers that sample, those with 0 samples among them.
int64_t sampled_layers(std::span<const int32_t> samples);

}  // namespace allot
