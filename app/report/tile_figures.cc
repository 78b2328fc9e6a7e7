#include "app/report/tile_figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cmath>
#include <string>
#include <utility>

#include "base/file.h"
#include "kernels/method.h"

namespace allot::app {
namespace {

using evaluation::TileMasses;
using evaluation::TileResults;
using evaluation::TileRow;

struct MeasuredRow {
  double samples;
  double error;
  double low;
  double high;
};

struct ErrorCurve {
  std::string name;
  std::vector<MeasuredRow> points;  // by rising samples
};

std::vector<ErrorCurve> error_curves(const TileResults& results) {
  std::vector<ErrorCurve> curves;
  for (const TileRow& row : results.rows) {
    if (!row.all || !(row.all->error > 0)) continue;
    const bool tiled = kernels::row_of(row.estimator).tiled;
    // The rows of an estimator without tiles are the same for all of them.
    if (!tiled && row.tile != results.masses.front().tile) continue;
    const std::string name = tiled ? fmt::format("{}, tiles of {}", kernels::name(row.estimator), row.tile)
                                   : std::string(kernels::name(row.estimator));
    auto curve = std::ranges::find(curves, name, &ErrorCurve::name);
    if (curve == curves.end()) curve = curves.insert(curves.end(), {.name = name, .points = {}});
    const double spread = row.all->error_standard_error.value_or(0);
    curve->points.push_back({.samples = static_cast<double>(row.samples),
                             .error = row.all->error,
                             .low = std::max(row.all->error - spread, kLeastShare * row.all->error),
                             .high = row.all->error + spread});
  }
  for (ErrorCurve& curve : curves) std::ranges::stable_sort(curve.points, {}, &MeasuredRow::samples);
  return curves;
}

std::string tile_style(size_t place) {
  return fmt::format("s{}", place % kSeriesStyles);
}

// 1, 2, 4, … and all, as the shares count.
std::vector<double> counts_of(const TileMasses& masses) {
  std::vector<double> counts;
  for (size_t place = 0; place < masses.share.size(); ++place)
    counts.push_back(std::min(std::exp2(static_cast<double>(place)), static_cast<double>(masses.tiles)));
  return counts;
}

}  // namespace

Chart tile_error_chart(const TileResults& results) {
  const std::vector<ErrorCurve> curves = error_curves(results);
  assert(!curves.empty());
  const MeasuredRow& first = curves.front().points.front();
  double fewest = first.samples, most = first.samples, least = first.low, largest = first.high;
  for (const ErrorCurve& curve : curves) {
    for (const MeasuredRow& point : curve.points) {
      fewest = std::min(fewest, point.samples);
      most = std::max(most, point.samples);
      least = std::min(least, point.low);
      largest = std::max(largest, point.high);
    }
  }
  Chart chart({.description = "Relative error of each estimator and size of tiles against samples",
               .width = 720,
               .height = 360,
               .margins = {.left = 62, .right = 16, .top = 30, .bottom = 42},
               .x = log_axis("Samples of a query head", fewest, most),
               .y = log_axis("Distance from exact attention, as a share of it", least, largest)});
  for (size_t i = 0; i < curves.size(); ++i) {
    std::vector<Point> line;
    for (const MeasuredRow& point : curves[i].points) {
      const double x = std::log10(point.samples);
      line.push_back({x, std::log10(point.error)});
      chart.whisker({x, std::log10(point.low)}, line.back(), {x, std::log10(point.high)},
                    "whisker " + tile_style(i),
                    fmt::format("{}, {} samples: {:.3g}", curves[i].name, point.samples, point.error));
    }
    chart.line(line, "line " + tile_style(i));
    // The error falls with the samples, so this corner is free.
    chart.note({chart.frame().x.to, chart.frame().y.to}, {-4, kLegendLine * static_cast<double>(i + 1)},
               "end", "strong halo " + tile_style(i), curves[i].name);
  }
  return chart;
}

Chart tile_share_chart(const TileResults& results, const TileMasses& masses) {
  struct Curve {
    std::string name;
    std::vector<double> share;
  };
  std::vector<Curve> curves = {{.name = "weights", .share = masses.share}};
  int64_t samples = 0;
  for (const TileRow& row : results.rows) samples = std::max(samples, row.samples);
  for (const TileRow& row : results.rows)
    if (row.tile == masses.tile && row.samples == samples && row.all)
      curves.push_back({.name = fmt::format("rows of {}", kernels::name(row.estimator)), .share = row.share});
  const std::vector<double> counts = counts_of(masses);
  std::vector<Tick> ticks;
  for (const double count : counts) ticks.push_back({std::log10(count), fmt::format("{:g}", count)});
  Axis tiles{.title = fmt::format("Heaviest tiles of {} keys; {} samples", masses.tile, samples),
             .from = -0.05,
             .to = std::log10(std::max(2.0, counts.back())) + 0.05,
             .ticks = std::move(ticks)};
  Chart chart(
      {.description = fmt::format(
           "Share of the weights and of the rows read in the heaviest tiles of {} keys", masses.tile),
       .width = 720,
       .height = 320,
       .margins = {.left = 62, .right = 16, .top = 30, .bottom = 42},
       .x = std::move(tiles),
       .y = {.title = "Share in these tiles", .from = 0, .to = 1.02, .ticks = percent_ticks(0, 1, 6)}});
  for (size_t i = 0; i < curves.size(); ++i) {
    std::vector<Point> line;
    for (size_t place = 0; place < counts.size(); ++place)
      line.push_back({std::log10(counts[place]), curves[i].share[place]});
    chart.line(line, "line " + tile_style(i));
    // Shares rise, so this corner is free.
    chart.note({chart.frame().x.to, chart.frame().y.from},
               {-4, -kLegendLine * static_cast<double>(curves.size() - i)}, "end",
               "strong halo " + tile_style(i), curves[i].name);
  }
  return chart;
}

std::vector<std::filesystem::path> write_tile_plots(const TileResults& results,
                                                    const std::filesystem::path& directory) {
  std::vector<std::filesystem::path> paths;
  if (!error_curves(results).empty()) {
    paths.push_back(directory / "tiles_error.svg");
    write_file_atomically(paths.back(), tile_error_chart(results).standalone_svg());
  }
  for (const TileMasses& masses : results.masses) {
    paths.push_back(directory / fmt::format("tiles_share_{}.svg", masses.tile));
    write_file_atomically(paths.back(), tile_share_chart(results, masses).standalone_svg());
  }
  return paths;
}

}  // namespace allot::app
