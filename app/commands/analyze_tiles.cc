// allot analyze tiles: in how many tiles the weights of attention lie, where estimators read, and how near
// they come to exact attention over budgets and sizes of tiles, as in tables 28 to 30 of the S2ANTA paper.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <iostream>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "app/cli/command.h"
#include "app/cli/options.h"
#include "app/cli/stop_signal.h"
#include "app/commands/states_options.h"
#include "app/files/schedule_argument.h"
#include "app/report/png.h"
#include "app/report/tile_figures.h"
#include "app/view/progress_line.h"
#include "base/error.h"
#include "base/json.h"
#include "bench/output.h"
#include "evaluation/tiles.h"
#include "kernels/method.h"

namespace allot::app {
namespace {

using evaluation::Closeness;
using evaluation::kSupportClasses;
using evaluation::TileMasses;
using evaluation::TileResults;
using evaluation::TileRow;

std::string masses_table(const TileResults& results) {
  const bench::Table table({{"tile", 6},
                            {"tiles", 7},
                            {"support", 9, 2},
                            {"1", 7},
                            {"2", 7},
                            {"3-4", 7},
                            {"5-8", 7},
                            {"9+", 7},
                            {"% in 1", 9, 1},
                            {"in 4", 7, 1},
                            {"in 16", 7, 1}});
  // Of the 4 heaviest, or of all where these are fewer.
  const auto percent = [](const TileMasses& row, size_t place) {
    return 100 * row.share[std::min(place, row.share.size() - 1)];
  };
  std::string text = table.head();
  for (const TileMasses& row : results.masses)
    text += table.line({row.tile, row.tiles, row.support, row.classes[0], row.classes[1], row.classes[2],
                        row.classes[3], row.classes[4], percent(row, 0), percent(row, 2), percent(row, 4)});
  return text;
}

std::string closeness_table(const TileResults& results) {
  const bench::Table table({{"estimator", -10},
                            {"tile", 6},
                            {"samples", 9},
                            {"rel. error", 12, 4},
                            {"std error", 11, 4},
                            {"cosine", 9, 4},
                            {"bias", 9, 4},
                            {"rows", 9, 1},
                            {"% in 1 tile", 13, 1},
                            {"in 4", 7, 1},
                            {"in 16", 7, 1}});
  std::string text = table.head();
  for (const TileRow& row : results.rows) {
    if (!row.all) {
      text += table.line(
          {kernels::name(row.estimator), row.tile, row.samples, "-", "-", "-", "-", "-", "-", "-", "-"});
      continue;
    }
    const auto percent = [&](size_t place) { return 100 * row.share[std::min(place, row.share.size() - 1)]; };
    text += table.line({kernels::name(row.estimator), row.tile, row.samples, row.all->error,
                        row.all->error_standard_error, row.all->cosine, row.all->bias, row.all->rows,
                        percent(0), percent(2), percent(4)});
  }
  return text;
}

std::string support_table(const TileResults& results) {
  const bench::Table table({{"estimator", -10},
                            {"tile", 6},
                            {"samples", 9},
                            {"1 tile", 10, 4},
                            {"2", 10, 4},
                            {"3-4", 10, 4},
                            {"5-8", 10, 4},
                            {"9+", 10, 4}});
  std::string text = table.head();
  for (const TileRow& row : results.rows) {
    if (!row.all) continue;
    const auto error = [&](size_t place) -> std::optional<double> {
      if (!row.by_support[place]) return {};
      return row.by_support[place]->error;
    };
    text += table.line({kernels::name(row.estimator), row.tile, row.samples, error(0), error(1), error(2),
                        error(3), error(4)});
  }
  return text;
}

nlohmann::ordered_json closeness_json(const std::optional<Closeness>& closeness) {
  if (!closeness) return nullptr;
  return {{"heads", closeness->heads},
          {"error", closeness->error},
          {"error_standard_error", bench::json_number(closeness->error_standard_error)},
          {"cosine", closeness->cosine},
          {"bias", bench::json_number(closeness->bias)},
          {"rows", closeness->rows}};
}

std::string json_row(const StatesOptions& options, const TileRow& row, const TileMasses& masses) {
  nlohmann::ordered_json json = options.json();
  nlohmann::ordered_json by_support, heads;
  for (size_t i = 0; i < kSupportClasses.size(); ++i) {
    const std::string name(kSupportClasses[i]);
    by_support[name] = closeness_json(row.by_support[i]);
    heads[name] = masses.classes[i];
  }
  json.update({{"estimator", kernels::name(row.estimator)},
               {"tile", row.tile},
               {"tiles", masses.tiles},
               {"samples", row.samples},
               {"all", closeness_json(row.all)},
               {"by_support", by_support},
               {"rows_share", row.share},
               {"support", masses.support},
               {"support_heads", heads},
               {"mass_share", masses.share}});
  return bench::json_line(json);
}

}  // namespace

int run_analyze_tiles(std::span<const std::string> arguments) {
  std::string what, tiles = "32,64,256", estimators = "sys,prop,flash";
  StatesOptions options("64,256,512,2048", 16);
  std::filesystem::path out;
  bool png = false, json = false;
  OptionSet set(
      "analyze",
      "in how many tiles the weights of one query's attention lie, where estimators read, and how near they come to "
      "exact attention over budgets and sizes of tiles: tables 28 to 30 of the S2ANTA paper",
      "allot analyze tiles --keys 8192 --score-deviation 3 --tiles 64,256");
  set.positional_choice("what", &what, {"tiles"}, "WHAT", "which analysis");
  set.require("what");
  options.add(set);
  set.text("tiles", &tiles, "KEYS,…", "keys of a tile");
  set.text("estimators", &estimators, "NAME,…", "estimators that choose rows for a single head");
  set.path("out", &out, "folder for plots of error against tiles and of mass and rows by tiles, as SVG");
  set.flag("png", &png, "draw the plots as PNG files too (needs rsvg-convert of the package librsvg2-bin)");
  set.flag("json", &json, "print one JSON object a row");
  if (set.parse(arguments) == OptionSet::Parsed::kDone) return 0;
  if (png && out.empty()) throw UsageError("--png needs --out DIR, the folder of the plots");

  std::vector<kernels::Estimator> chosen;
  std::istringstream names(estimators);
  for (std::string name; std::getline(names, name, ',');) chosen.push_back(kernels::parse_estimator(name));
  const evaluation::VarianceSetting& setting = options.setting();
  ProgressLine line("heads");
  const TileResults results = evaluation::measure_tiles(
      setting, chosen, parse_totals(tiles, "--tiles"),
      [&](int64_t done) { line.update(done, setting.heads); }, &watch_stop_signals());
  if (results.rows.empty()) throw Error("stopped before all heads were measured; no result is printed");
  if (json) {
    for (size_t i = 0; i < results.rows.size(); ++i) {
      const auto of_tile = std::ranges::find(results.masses, results.rows[i].tile, &TileMasses::tile);
      std::cout << json_row(options, results.rows[i], *of_tile);
    }
  } else {
    std::cout << fmt::format(
                     "Attention by tiles, {}\n\nTiles that hold 90 % of the weights: mean and number of "
                     "heads; percent of the weights in the heaviest tiles\n",
                     options.description())
              << masses_table(results)
              << "\nEstimate against exact attention, and percent of the distinct value rows in the heaviest "
                 "tiles\n"
              << closeness_table(results) << "\nRelative error of heads whose weights lie in so many tiles\n"
              << support_table(results);
  }
  if (out.empty()) return 0;
  list_plots(write_tile_plots(results, out), png, std::cerr);
  return 0;
}

}  // namespace allot::app
