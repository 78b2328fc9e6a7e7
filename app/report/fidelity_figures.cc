#include "app/report/fidelity_figures.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <optional>
#include <set>

#include "app/report/log_curves.h"
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

// "sys", "sys, 2 exact layers".
std::string name_of(const evaluation::FidelityRow& row) {
  const std::string_view estimator = kernels::name(row.method.estimator);
  if (row.exact_layers == 0) return std::string(estimator);
  return fmt::format("{}, {} exact layer{}", estimator, row.exact_layers, row.exact_layers == 1 ? "" : "s");
}

// A curve for every estimator and number of exact layers, in the order of the rows.
std::vector<MeasuredCurve> curves_of(std::span<const evaluation::FidelityRow> rows, FidelityCost cost) {
  std::vector<MeasuredCurve> curves;
  for (const evaluation::FidelityRow& row : rows) {
    const std::optional<double> at = cost_of(row, cost);
    const double divergence = row.summary.divergence;
    if (!at || !(*at > 0) || !(divergence > 0)) continue;
    const std::string name = name_of(row);
    curve_named(name, &curves)
        .points.push_back(measured_point(*at, divergence, row.summary.divergence_error.value_or(0),
                                         fmt::format("{} {}: {:.3g} nats", name, row.schedule, divergence)));
  }
  sort_points(&curves);
  return curves;
}

// One at every cost that was measured.
std::vector<Tick> ticks_of(const std::vector<MeasuredCurve>& curves) {
  std::set<double> costs;
  for (const MeasuredCurve& curve : curves)
    for (const MeasuredPoint& point : curve.points) costs.insert(point.x);
  std::vector<Tick> ticks;
  for (const double cost : costs) ticks.push_back({std::log10(cost), fmt::format("{:g}", cost)});
  return ticks;
}

}  // namespace

Chart fidelity_chart(std::span<const evaluation::FidelityRow> rows, FidelityCost cost) {
  const std::vector<MeasuredCurve> curves = curves_of(rows, cost);
  const char* const title = title_of(cost, rows.front().method.unit);  // which is that of all
  return log_curves_chart({.description = fmt::format("Divergence of each estimator against: {}", title),
                           .x = title,
                           .y = "Divergence from exact attention, nats"},
                          curves, cost == FidelityCost::kSamples ? ticks_of(curves) : std::vector<Tick>());
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
