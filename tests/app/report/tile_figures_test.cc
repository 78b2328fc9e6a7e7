#include "app/report/tile_figures.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/temporary_directory.h"
#include "tests/app/report/xml.h"

namespace allot::app {
namespace {

using evaluation::TileResults;
using evaluation::TileRow;
using kernels::Estimator;
using ::testing::ElementsAre;
using ::testing::SizeIs;

TileRow tile_row(Estimator estimator, int64_t tile, int64_t samples, double error) {
  return {.estimator = estimator,
          .tile = tile,
          .samples = samples,
          .all = evaluation::Closeness{.heads = 3, .error = error, .error_standard_error = error / 4},
          .share = {.25, .5, 1}};
}

TileResults results() {
  TileResults results;
  for (const int64_t tile : {16, 32})
    results.masses.push_back({.tile = tile, .tiles = 4, .share = {.6, .8, 1}});
  for (const Estimator estimator : {Estimator::kSys, Estimator::kFlash})
    for (const int64_t tile : {16, 32})
      for (const int64_t samples : {8, 2})
        results.rows.push_back(tile_row(estimator, tile, samples, .1 / static_cast<double>(samples * tile)));
  results.rows[5].all = {};  // flash, 2 samples for 4 tiles
  return results;
}

std::vector<std::string> names_of(const XmlElement& svg) {
  std::vector<std::string> names;
  for (const XmlElement* text : svg.all("text", "halo")) names.push_back(text->text);
  return names;
}

TEST(TileFigures, ErrorsHaveACurveForEveryTileOfEstimatorsThatHaveTiles) {
  const XmlElement svg = parse_xml(tile_error_chart(results()).inline_svg());
  EXPECT_THAT(names_of(svg), ElementsAre("sys", "flash, tiles of 16", "flash, tiles of 32"));
  EXPECT_THAT(svg.all("path", "line"), SizeIs(3));
  EXPECT_THAT(svg.all("g", "whisker"), SizeIs(5)) << "two budgets a curve, one of them not measured";
  EXPECT_THAT(svg.all("g", "whisker").front()->all("title").at(0)->text, "sys, 2 samples: 0.00313");
}

TEST(TileFigures, SharesAreOfTheWeightsAndOfTheRowsAtTheLargestBudget) {
  const TileResults all = results();
  const XmlElement svg = parse_xml(tile_share_chart(all, all.masses[1]).inline_svg());
  EXPECT_THAT(names_of(svg), ElementsAre("weights", "rows of sys", "rows of flash"));
  EXPECT_THAT(svg.all("path", "line"), SizeIs(3));
}

TEST(TileFigures, ThereIsAFileForErrorsAndOneForEverySizeOfTiles) {
  const TemporaryDirectory directory;
  using Paths = std::vector<std::filesystem::path>;
  const Paths paths = write_tile_plots(results(), directory.path());
  EXPECT_EQ(paths, (Paths{directory.path() / "tiles_error.svg", directory.path() / "tiles_share_16.svg",
                          directory.path() / "tiles_share_32.svg"}));
  EXPECT_THAT(parse_xml(read_file(paths[2])).all("path", "line"), SizeIs(3));
}

}  // namespace
}  // namespace allot::app
