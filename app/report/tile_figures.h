// The figures of `allot analyze tiles`: error of estimators against their samples, and how the weights and
// the rows that are read lie in the heaviest tiles.
#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "app/report/svg_chart.h"
#include "evaluation/tiles.h"

namespace allot::app {

// Mean relative error with its standard error against samples, both axes logarithmic: a curve for every
// estimator, and for every size of tiles where it works by them. There has to be a row that was measured.
Chart tile_error_chart(const evaluation::TileResults& results);

// Shares of the weights and of each estimator's distinct rows, at the largest budget measured, in the 1, 2,
// 4, … heaviest tiles of `masses`, one of results.masses.
Chart tile_share_chart(const evaluation::TileResults& results, const evaluation::TileMasses& masses);

// Writes tiles_error.svg and a tiles_share_KEYS.svg for every size of tiles to `directory` and returns the
// paths. Throws StorageError.
std::vector<std::filesystem::path> write_tile_plots(const evaluation::TileResults& results,
                                                    const std::filesystem::path& directory);

}  // namespace allot::app
