// allot analyze tails: how far sampled attention strays, beside the bound of Appendix B of the S2ANTA paper.
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
using evaluation::Tail;

constexpr double kDeltas[] = {.5, .1, .01};

using SpacingTails = std::pair<Spacing, std::vector<Tail>>;

std::string table(std::span<const SpacingTails> spacings) {
  const bench::Table table({{"draws", -6},
                            {"samples", 9},
                            {"delta", 8, 2},
                            {"distance", 10, 4},
                            {"bound", 9, 4},
                            {"bound / distance", 17, 2},
                            {"beyond bound %", 15, 2}});
  std::string text = table.head();
  for (const auto& [spacing, tails] : spacings) {
    for (const Tail& tail : tails) {
      text += table.line({evaluation::name(spacing), tail.samples, tail.delta, tail.quantile, tail.bound,
                          tail.bound / tail.quantile, 100 * tail.beyond});
    }
  }
  return text;
}

std::string json_row(const StatesOptions& options, Spacing spacing, const Tail& tail) {
  nlohmann::ordered_json json = options.json(spacing);
  json.update({{"samples", tail.samples},
               {"delta", tail.delta},
               {"quantile", tail.quantile},
               {"bound", tail.bound},
               {"beyond", tail.beyond}});
  return bench::json_line(json);
}

}  // namespace

int run_analyze_tails(std::span<const std::string> arguments) {
  std::string what;
  StatesOptions options("16,64,256", 1000);
  bool json = false;
  OptionSet set(
      "analyze",
      "distance of one query's sampled attention from exact attention that is passed with a chance of "
      "50, 10 and 1 %, beside the bound of Theorem B.1 of the S2ANTA paper, which is one of independent draws",
      "allot analyze tails --keys 8192 --score-deviation 3 --samples 16,64");
  set.positional_choice("what", &what, {"tails"}, "WHAT", "which analysis");
  set.require("what");
  options.add(set);
  set.flag("json", &json, "print one JSON object a row");
  if (set.parse(arguments) == OptionSet::Parsed::kDone) return 0;

  const std::vector<SpacingTails> spacings =
      measure_spacings<Tail>(options, [](const evaluation::VarianceSetting& setting, const auto&... with) {
        return evaluation::measure_tails(setting, kDeltas, with...);
      });
  if (json) {
    for (const auto& [spacing, tails] : spacings)
      for (const Tail& tail : tails) std::cout << json_row(options, spacing, tail);
  } else {
    std::cout << fmt::format("Distance from exact attention that is passed with chance delta, of {}\n",
                             options.description())
              << table(spacings);
  }
  return 0;
}

}  // namespace allot::app
