// The figure of `allot ablate`: what each layer or KV head loses with one sample, and below it how many
// samples a schedule gives the layers (figures 8 and 9 of the S2ANTA paper).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "app/report/svg_chart.h"
#include "evaluation/ablation.h"

namespace allot::app {

// What one sample was left to: "layer", "KV head".
const char* ablated_part(const evaluation::Ablation& ablation);
// "Layer 3", "Layer 3, KV head 1".
std::string ablated_name(const evaluation::LayerAblation& row);
// Where the row's mark stands on an axis of layers, whose room KV heads share.
std::pair<double, double> ablated_room(const evaluation::Ablation& ablation,
                                       const evaluation::LayerAblation& row);

// A schedule beside which losses are shown.
struct ShownSchedule {
  std::string label;
  std::vector<int32_t> samples;  // [layers], each a number or kExactLayer
};

// Points of accuracy lost, as bars with their 95% intervals.
Chart ablation_drop_chart(const evaluation::Ablation& ablation);
// The schedule's samples over the same layers.
Chart beside_chart(const ShownSchedule& schedule, kernels::BudgetUnit unit);

// Writes ablation.svg, the first chart over the second where there is a schedule, to `directory` and returns
// its path. Throws StorageError.
std::filesystem::path write_ablation_plot(const evaluation::Ablation& ablation,
                                          const std::optional<ShownSchedule>& beside,
                                          const std::filesystem::path& directory);

}  // namespace allot::app
