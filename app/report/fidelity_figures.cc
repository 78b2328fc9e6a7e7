#include "app/report/fidelity_figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <optional>
#include <set>
#include <utility>

#include "base/file.h"

namespace allot::app {
namespace {

constexpr std::array kCosts = {FidelityCost::kSamples, FidelityCost::kRows, FidelityCost::kMicroseconds};

const char* file_of(FidelityCost cost) {
  switch (cost) {
    case FidelityCost::kSamples:
      return "fidelity_samples.svg";
    case FidelityCost::kRows:
      return "fidelity_rows.svg";
    case FidelityCost::kMicroseconds:
      break;
  }
  return "fidelity_microseconds.svg";
}

const char* title_of(FidelityCost cost, kernels::BudgetUnit unit) {
  switch (cost) {
    case FidelityCost::kSamples:
      return unit == kernels::BudgetUnit::kRows ? "Value rows asked for a KV head" : "Samples of a layer";
    case FidelityCost::kRows:
      return "Distinct value rows read by a query, per KV head";
    case FidelityCost::kMicroseconds:
      break;
  }
  return "Microseconds per token of the sampled pass";
}

std::optional<double> cost_of(const evaluation::FidelityRow& row, FidelityCost cost) {
  switch (cost) {
    case FidelityCost::kSamples:
      return row.samples;
    case FidelityCost::kRows:
      return row.summary.rows_per_kv_head;
    case FidelityCost::kMicroseconds:
      break;
  }
  return row.summary.microseconds;
}

struct Measured {
  double cost;
  double divergence;
  double low;
  double high;
  std::string tip;
};

struct Curve {
  std::string name;
  std::vector<Measured> points;  // by rising cost
};

// "sys", "sys, 2 exact layers".
std::string name_of(const evaluation::FidelityRow& row) {
  const std::string_view estimator = kernels::name(row.method.estimator);
  if (row.exact_layers == 0) return std::string(estimator);
  return fmt::format("{}, {} exact layer{}", estimator, row.exact_layers, row.exact_layers == 1 ? "" : "s");
}

// A curve for every estimator and number of exact layers, in the order of the rows.
std::vector<Curve> curves_of(std::span<const evaluation::FidelityRow> rows, FidelityCost cost) {
  std::vector<Curve> curves;
  for (const evaluation::FidelityRow& row : rows) {
    const std::optional<double> at = cost_of(row, cost);
    const double divergence = row.summary.divergence;
    if (!at || !(*at > 0) || !(divergence > 0)) continue;
    const std::string name = name_of(row);
    auto curve = std::ranges::find(curves, name, &Curve::name);
    if (curve == curves.end()) curve = curves.insert(curves.end(), {.name = name, .points = {}});
    const double error = row.summary.divergence_error.value_or(0);
    curve->points.push_back({.cost = *at,
                             .divergence = divergence,
                             .low = std::max(divergence - error, kLeastShare * divergence),
                             .high = divergence + error,
                             .tip = fmt::format("{} {}: {:.3g} nats", name, row.schedule, divergence)});
  }
  for (Curve& curve : curves) std::ranges::stable_sort(curve.points, {}, &Measured::cost);
  return curves;
}

// One at every cost that was measured.
std::vector<Tick> ticks_of(const std::vector<Curve>& curves) {
  std::set<double> costs;
  for (const Curve& curve : curves)
    for (const Measured& point : curve.points) costs.insert(point.cost);
  std::vector<Tick> ticks;
  for (const double cost : costs) ticks.push_back({std::log10(cost), fmt::format("{:g}", cost)});
  return ticks;
}

}  // namespace

Chart fidelity_chart(std::span<const evaluation::FidelityRow> rows, FidelityCost cost) {
  const std::vector<Curve> curves = curves_of(rows, cost);
  assert(!curves.empty());
  const Measured& first = curves.front().points.front();
  double least_cost = first.cost, most_cost = first.cost, least = first.low, most = first.high;
  for (const Curve& curve : curves) {
    for (const Measured& point : curve.points) {
      least_cost = std::min(least_cost, point.cost);
      most_cost = std::max(most_cost, point.cost);
      least = std::min(least, point.low);
      most = std::max(most, point.high);
    }
  }
  const char* const title = title_of(cost, rows.front().method.unit);  // which is that of all
  Axis costs = log_axis(title, least_cost, most_cost);
  if (cost == FidelityCost::kSamples) costs.ticks = ticks_of(curves);
  Chart chart({.description = fmt::format("Divergence of each estimator against: {}", title),
               .width = 720,
               .height = 360,
               .margins = {.left = 62, .right = 16, .top = 30, .bottom = 42},
               .x = std::move(costs),
               .y = log_axis("Divergence from exact attention, nats", least, most)});
  for (size_t i = 0; i < curves.size(); ++i) {
    const std::string series = fmt::format("s{}", i % kSeriesStyles);
    std::vector<Point> line;
    for (const Measured& point : curves[i].points) {
      const double x = std::log10(point.cost);
      line.push_back({x, std::log10(point.divergence)});
      chart.whisker({x, std::log10(point.low)}, line.back(), {x, std::log10(point.high)}, "whisker " + series,
                    point.tip);
    }
    chart.line(line, "line " + series);
    // Divergence falls with cost, so this corner is free.
    chart.note({chart.frame().x.to, chart.frame().y.to}, {-4, kLegendLine * static_cast<double>(i + 1)},
               "end", "strong halo " + series, curves[i].name);
  }
  return chart;
}

std::vector<std::filesystem::path> write_fidelity_plots(std::span<const evaluation::FidelityRow> rows,
                                                        const std::filesystem::path& directory) {
  std::vector<std::filesystem::path> paths;
  for (const FidelityCost cost : kCosts) {
    if (curves_of(rows, cost).empty()) continue;
    paths.push_back(directory / file_of(cost));
    write_file_atomically(paths.back(), fidelity_chart(rows, cost).standalone_svg());
  }
  return paths;
}

}  // namespace allot::app
