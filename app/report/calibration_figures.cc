#include "app/report/calibration_figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cmath>
#include <optional>

#include "app/report/run_text.h"
#include "base/file.h"

namespace allot::app {
namespace {

using evaluation::Calibration;
using kernels::BudgetUnit;

constexpr int kMostLayerTicks = 20;

Axis layer_axis(size_t layers) {
  const auto count = static_cast<double>(layers);
  return {.title = "Layer",
          .from = -0.6,
          .to = count - 0.4,
          .ticks = layers == 1 ? std::vector<Tick>{{0, "0"}} : whole_ticks(0, count - 1, kMostLayerTicks)};
}

Frame frame_of(std::string description, Axis x, Axis y) {
  return {.description = std::move(description),
          .width = 720,
          .height = 320,
          .margins = {.left = 62, .right = 64, .top = 30, .bottom = 42},
          .x = std::move(x),
          .y = std::move(y)};
}

// In the place of a mark for each exact layer, at `y`.
void name_exact_layers(Chart* chart, const policy::Schedule& schedule, double y) {
  for (size_t layer = 0; layer < schedule.samples.size(); ++layer)
    if (schedule.samples[layer] == kExactLayer)
      chart->note({static_cast<double>(layer), y}, {0, -5}, "middle", "strong halo",
                  std::string(kExactLayerText));
}

void legend(Chart* chart, int line, const char* style, const std::string& text) {
  chart->note({chart->frame().x.to, chart->frame().y.to}, {-4, kLegendLine * line}, "end",
              fmt::format("strong halo {}", style), text);
}

}  // namespace

Chart calibrated_schedule_chart(const Calibration& calibration, BudgetUnit unit) {
  const std::vector<int32_t>& samples = calibration.schedule.samples;
  const double even =
      static_cast<double>(calibration.schedule.total()) / static_cast<double>(sampled_layers(samples));
  const double top = 1.08 * std::max<double>({1.0, even, static_cast<double>(std::ranges::max(samples))});
  Chart chart(
      frame_of(fmt::format("{} per layer of the learned schedule as bars, of the even schedule as a line",
                           capital_of(unit)),
               layer_axis(samples.size()),
               {.title = budget_title(unit), .from = 0, .to = top, .ticks = whole_ticks(0, top, 6)}));
  for (size_t layer = 0; layer < samples.size(); ++layer) {
    const auto x = static_cast<double>(layer);
    if (samples[layer] != kExactLayer)
      chart.bar(x - kHalfBar, x + kHalfBar, samples[layer], "bar",
                fmt::format("Layer {}: {} {}", layer, samples[layer], name(unit)));
  }
  name_exact_layers(&chart, calibration.schedule, 0);
  const std::vector<Point> line = {{-0.5, even}, {static_cast<double>(samples.size()) - 0.5, even}};
  chart.line(line, "line uniform");
  chart.note(line.back(), {6, 4}, "start", "uniform", "uniform");
  return chart;
}

Chart sensitivity_chart(const Calibration& calibration, BudgetUnit unit) {
  const char* const one = unit == BudgetUnit::kRows ? "row" : "sample";
  const std::vector<std::optional<policy::LayerSensitivity>>& layers = calibration.sensitivities;
  assert(!layers.empty());
  double low = 0, high = 0;
  for (const std::optional<policy::LayerSensitivity>& layer : layers) {
    if (!layer) continue;
    high = std::max(high, layer->one_more + layer->error);
    if (std::isfinite(layer->one_fewer)) low = std::min(low, layer->one_fewer);
  }
  const double room = 0.05 * std::max(high - low, 1e-6);
  Chart chart(frame_of(
      fmt::format("Change of minus the log of the divergence by one {} more and by one fewer, for each layer",
                  one),
      layer_axis(layers.size()),
      {.title = "Change of -log divergence",
       .from = low - room,
       .to = high + room,
       .ticks = round_ticks(low - room, high + room, 6)}));
  chart.level(0, "plain", "0");
  name_exact_layers(&chart, calibration.schedule, 0);
  for (size_t layer = 0; layer < layers.size(); ++layer) {
    if (!layers[layer]) continue;
    const auto x = static_cast<double>(layer);
    const policy::LayerSensitivity& of = *layers[layer];
    chart.whisker({x, of.one_more - of.error}, {x, of.one_more}, {x, of.one_more + of.error}, "whisker s0",
                  fmt::format("Layer {}, one {} more: {:+.4f}", layer, one, of.one_more));
    if (std::isfinite(of.one_fewer))
      chart.whisker({x, of.one_fewer}, {x, of.one_fewer}, {x, of.one_fewer}, "whisker s1",
                    fmt::format("Layer {}, one {} fewer: {:+.4f}", layer, one, of.one_fewer));
  }
  legend(&chart, 1, "s0", fmt::format("one {} more", one));
  legend(&chart, 2, "s1", "one fewer");
  return chart;
}

Chart calibration_chart(std::span<const Calibration> calibrations, BudgetUnit unit) {
  assert(calibrations.size() >= 2);
  struct Side {
    const char* name;
    const char* style;
    evaluation::Divergence Calibration::*divergence;
  };
  constexpr Side kSides[] = {{"uniform", "s1", &Calibration::uniform},
                             {"learned", "s0", &Calibration::learned}};
  std::vector<const Calibration*> sorted;
  for (const Calibration& calibration : calibrations) sorted.push_back(&calibration);
  std::ranges::sort(sorted, {}, [](const Calibration* one) { return one->schedule.total(); });
  const auto low_of = [](const evaluation::Divergence& of) {
    return std::max(of.mean - of.standard_error, kLeastShare * of.mean);
  };
  double least = sorted.front()->learned.mean, most = 0;
  for (const Calibration* one : sorted) {
    for (const Side& side : kSides) {
      const evaluation::Divergence& of = one->*side.divergence;
      least = std::min(least, low_of(of));
      most = std::max(most, of.mean + of.standard_error);
    }
  }
  Chart chart(frame_of(
      fmt::format("Divergence of the even and of the learned schedules against the total of {}", name(unit)),
      log_axis(fmt::format("{} of all layers", capital_of(unit)),
               static_cast<double>(sorted.front()->schedule.total()),
               static_cast<double>(sorted.back()->schedule.total())),
      log_axis("Divergence from exact attention, nats", least, most)));
  int line = 0;
  for (const Side& side : kSides) {
    std::vector<Point> points;
    for (const Calibration* one : sorted) {
      const evaluation::Divergence& of = one->*side.divergence;
      const double x = std::log10(static_cast<double>(one->schedule.total()));
      points.push_back({x, std::log10(of.mean)});
      chart.whisker({x, std::log10(low_of(of))}, points.back(), {x, std::log10(of.mean + of.standard_error)},
                    fmt::format("whisker {}", side.style),
                    fmt::format("{} {}: {:.3g} nats", side.name, one->schedule.total(), of.mean));
    }
    chart.line(points, fmt::format("line {}", side.style));
    legend(&chart, ++line, side.style, side.name);
  }
  return chart;
}

std::vector<std::filesystem::path> write_calibration_plots(std::span<const Calibration> calibrations,
                                                           BudgetUnit unit,
                                                           const std::filesystem::path& directory) {
  std::vector<std::filesystem::path> paths;
  const auto write = [&](const std::string& name, const Chart& chart) {
    paths.push_back(directory / name);
    write_file_atomically(paths.back(), chart.standalone_svg());
  };
  for (const Calibration& calibration : calibrations) {
    const int64_t total = calibration.schedule.total();
    write(fmt::format("schedule-{}.svg", total), calibrated_schedule_chart(calibration, unit));
    if (!calibration.sensitivities.empty())
      write(fmt::format("sensitivities-{}.svg", total), sensitivity_chart(calibration, unit));
  }
  if (calibrations.size() > 1) write("divergence.svg", calibration_chart(calibrations, unit));
  return paths;
}

}  // namespace allot::app
