#include "app/report/tile_figures.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "app/report/log_curves.h"
#include "base/file.h"
#include "kernels/method.h"

namespace allot::app {
namespace {

using evaluation::TileMasses;
using evaluation::TileResults;
using evaluation::TileRow;

std::vector<MeasuredCurve> error_curves(const TileResults& results) {
  std::vector<MeasuredCurve> curves;
  for (const TileRow& row : results.rows) {
    if (!row.all || !(row.all->error > 0)) continue;
    const bool tiled = kernels::row_of(row.estimator).tiled;
    // The rows of an estimator without tiles are the same for all of them.
    if (!tiled && row.tile != results.masses.front().tile) continue;
    const std::string name = tiled ? fmt::format("{}, tiles of {}", kernels::name(row.estimator), row.tile)
                                   : std::string(kernels::name(row.estimator));
    curve_named(name, &curves)
        .points.push_back(measured_point(
            static_cast<double>(row.samples), row.all->error, row.all->error_standard_error.value_or(0),
            fmt::format("{}, {} samples: {:.3g}", name, row.samples, row.all->error)));
  }
  sort_points(&curves);
  return curves;
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
  return log_curves_chart(
      {.description = "Relative error of each estimator and size of tiles against samples",
       .x = "Samples of a query head",
       .y = "Distance from exact attention, as a share of it"},
      error_curves(results));
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
    chart.line(line, "line " + series_style(i));
    // Shares rise, so this corner is free.
    chart.note({chart.frame().x.to, chart.frame().y.from},
               {-4, -kLegendLine * static_cast<double>(curves.size() - i)}, "end",
               "strong halo " + series_style(i), curves[i].name);
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
