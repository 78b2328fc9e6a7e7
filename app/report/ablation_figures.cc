#include "app/report/ablation_figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "app/report/run_text.h"
#include "base/file.h"
#include "base/number_text.h"
#include "episode/samples.h"

namespace allot::app {
namespace {

constexpr double kPanelWidth = 720, kPanelHeight = 260;
constexpr Margins kPanelMargins{.left = 50, .right = 24, .top = 30, .bottom = 42};
constexpr double kRoomOfNumber = 20;  // pixels

Axis layers_of(int layers) {
  return {.title = "Layer", .from = -0.5, .to = layers - 0.5, .ticks = whole_ticks(-0.5, layers - 0.5, 28)};
}

}  // namespace

const char* ablated_part(const evaluation::Ablation& ablation) {
  return ablation.kv_heads > 0 ? "KV head" : "layer";
}

std::string ablated_name(const evaluation::LayerAblation& row) {
  return row.kv_head < 0 ? fmt::format("Layer {}", row.layer)
                         : fmt::format("Layer {}, KV head {}", row.layer, row.kv_head);
}

std::pair<double, double> ablated_room(const evaluation::Ablation& ablation,
                                       const evaluation::LayerAblation& row) {
  const double width = 2 * kHalfBar / std::max(ablation.kv_heads, 1);
  const double low = row.layer - kHalfBar + width * std::max(row.kv_head, 0);
  return {low, low + width};
}

Chart ablation_drop_chart(const evaluation::Ablation& ablation) {
  double low = 0, high = 0.01;
  for (const evaluation::LayerAblation& row : ablation.layers) {
    low = std::min(low, row.drop_interval.low);
    high = std::max(high, row.drop_interval.high);
  }
  low *= 1.05;
  high *= 1.05;
  Chart chart(
      {.description = fmt::format("Points of accuracy lost with one sample in one {0}, for each {0}, with "
                                  "their 95% intervals",
                                  ablated_part(ablation)),
       .width = kPanelWidth,
       .height = kPanelHeight,
       .margins = kPanelMargins,
       .x = layers_of(static_cast<int>(ablation.base.samples.size())),
       .y = {.title = fmt::format("Accuracy lost with one sample in this {} (base {})",
                                  ablated_part(ablation), percent(ablation.base_accuracy.value)),
             .from = low,
             .to = high,
             .ticks = percent_ticks(low, high, 6)}});
  for (const evaluation::LayerAblation& row : ablation.layers) {
    const auto [left, right] = ablated_room(ablation, row);
    const double x = (left + right) / 2;
    chart.cell({left, 0}, {right, row.drop}, "bar",
               fmt::format("{}: {}", ablated_name(row),
                           points_with_range(row.drop, row.drop_interval.low, row.drop_interval.high)));
    const std::array<Point, 2> interval = {Point{x, row.drop_interval.low}, Point{x, row.drop_interval.high}};
    chart.line(interval, "line uniform");
  }
  return chart;
}

Chart beside_chart(const ShownSchedule& schedule, kernels::BudgetUnit unit) {
  const auto layers = static_cast<int>(schedule.samples.size());
  const double top = 1.12 * std::max(1, std::ranges::max(schedule.samples));  // room for numbers
  Chart chart({.description = fmt::format("{} per layer of {}", capital_of(unit), schedule.label),
               .width = kPanelWidth,
               .height = kPanelHeight,
               .margins = kPanelMargins,
               .x = layers_of(layers),
               .y = {.title = fmt::format("{} of {}", capital_of(unit), schedule.label),
                     .from = 0,
                     .to = top,
                     .ticks = whole_ticks(0, top, 6)}});
  const bool numbers = chart.x().pixels_per_unit() >= kRoomOfNumber;
  for (int layer = 0; layer < layers; ++layer) {
    const int32_t samples = schedule.samples[static_cast<size_t>(layer)];
    const double height = std::max(0, samples);  // an exact layer has no bar
    chart.bar(layer - kHalfBar, layer + kHalfBar, height, "bar",
              fmt::format("Layer {}: {}", layer, layer_text(samples)));
    if (numbers) chart.note({double(layer), height}, {0, -5}, "middle", "strong halo", layer_text(samples));
  }
  return chart;
}

std::filesystem::path write_ablation_plot(const evaluation::Ablation& ablation,
                                          const std::optional<ShownSchedule>& beside,
                                          const std::filesystem::path& directory) {
  std::vector<Chart> panels = {ablation_drop_chart(ablation)};
  if (beside) panels.push_back(beside_chart(*beside, ablation.conditions.attention.unit));
  std::filesystem::path file = directory / "ablation.svg";
  write_file_atomically(file, stacked_svg(panels));
  return file;
}

}  // namespace allot::app
