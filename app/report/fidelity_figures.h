// The figures of `allot analyze fidelity`: divergence against what it costs, a curve for every estimator and
// number of exact layers.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "app/report/svg_chart.h"
#include "evaluation/fidelity.h"

namespace allot::app {

// What a figure has on its horizontal axis.
enum class FidelityCost {
  kSamples,       // of a layer, or rows where budgets are rows
  kRows,          // distinct value rows a KV head
  kMicroseconds,  // of the sampled pass for a token
};

// Divergence with its standard error against `cost`, both axes logarithmic. Rows whose divergence or cost is
// 0 or not known are left out; there has to be one that is not.
Chart fidelity_chart(std::span<const evaluation::FidelityRow> rows, FidelityCost cost);

// Writes fidelity_samples.svg, fidelity_rows.svg and fidelity_microseconds.svg to `directory`, those for
// which there are points, and returns the paths. Throws StorageError.
std::vector<std::filesystem::path> write_fidelity_plots(std::span<const evaluation::FidelityRow> rows,
                                                        const std::filesystem::path& directory);

}  // namespace allot::app
