// allot analyze variance: the error of sampled attention on random states, by formula and as measured, and
// the value rows that it reads, as in figure 7 and table 20 of the S2ANTA paper.
#include <spdlog/fmt/fmt.h>

#include <iostream>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "app/cli/command.h"
#include "app/cli/options.h"
#include "app/commands/states_options.h"
#include "base/json.h"
#include "bench/output.h"
#include "evaluation/variance.h"

namespace allot::app {
namespace {

using evaluation::Spacing;
using evaluation::Variance;

using SpacingVariances = std::pair<Spacing, std::vector<Variance>>;

std::string table(std::span<const SpacingVariances> spacings) {
  const bench::Table table({{"draws", -6},
                            {"samples", 9},
                            {"squared error", 14, 5},
                            {"std error", 10, 5},
                            {"formula", 10, 5},
                            {"rows", 9, 2},
                            {"std error", 10, 2},
                            {"formula", 9, 2}});
  std::string text = table.head();
  for (const auto& [spacing, variances] : spacings) {
    for (const Variance& row : variances) {
      text += table.line({evaluation::name(spacing), row.samples, row.squared_error.mean,
                          row.squared_error.standard_error, row.squared_error.formula, row.rows.mean,
                          row.rows.standard_error, row.rows.formula});
    }
  }
  std::string slopes;
  for (const auto& [spacing, variances] : spacings) {
    if (const auto slope = evaluation::slope(variances)) {
      slopes += fmt::format("{} {} {:.3f}", slopes.empty() ? "" : ",", evaluation::name(spacing), *slope);
    }
  }
  if (!slopes.empty())
    text += fmt::format("slope of log(squared error) over log(samples), by formula where there is one:{}\n",
                        slopes);
  return text;
}

std::string json_row(const StatesOptions& options, Spacing spacing, const Variance& row) {
  nlohmann::ordered_json json = options.json(spacing);
  json.update({{"samples", row.samples},
               {"squared_error", row.squared_error.mean},
               {"squared_error_standard_error", row.squared_error.standard_error},
               {"squared_error_formula", bench::json_number(row.squared_error.formula)},
               {"rows", row.rows.mean},
               {"rows_standard_error", row.rows.standard_error},
               {"rows_formula", bench::json_number(row.rows.formula)}});
  return bench::json_line(json);
}

}  // namespace

int run_analyze_variance(std::span<const std::string> arguments) {
  std::string what;
  StatesOptions options("16,32,64,128,256", 64);
  bool json = false;
  OptionSet set(
      "analyze",
      "error of one query's sampled attention, by the formulas of Appendix N of the S2ANTA paper and as measured, "
      "and the distinct value rows read: figure 7 and table 20, on normally distributed scores and values",
      "allot analyze variance --keys 8192 --score-deviation 3 --samples 16,32,64");
  set.positional_choice("what", &what, {"variance"}, "WHAT", "which analysis");
  set.require("what");
  options.add(set);
  set.flag("json", &json, "print one JSON object a row");
  if (set.parse(arguments) == OptionSet::Parsed::kDone) return 0;

  const std::vector<SpacingVariances> spacings = measure_spacings<Variance>(
      options, [](const auto&... with) { return evaluation::measure_variance(with...); });
  if (json) {
    for (const auto& [spacing, variances] : spacings)
      for (const Variance& row : variances) std::cout << json_row(options, spacing, row);
  } else {
    std::cout << fmt::format("Sampled attention of {}\n", options.description()) << table(spacings);
  }
  return 0;
}

}  // namespace allot::app
