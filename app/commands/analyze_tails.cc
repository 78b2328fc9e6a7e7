// allot analyze tails: how far sampled attention strays, beside the bound of Appendix B of the S2ANTA paper.
#include <spdlog/fmt/fmt.h>

#include <iostream>
#include <string>
#include <vector>

#include "app/cli/command.h"
#include "app/cli/options.h"
#include "app/cli/stop_signal.h"
#include "app/cli/version.h"
#include "app/files/schedule_argument.h"
#include "app/view/progress_line.h"
#include "base/error.h"
#include "base/json.h"
#include "bench/output.h"
#include "evaluation/variance.h"

namespace allot::app {
namespace {

using evaluation::Spacing;
using evaluation::Tail;
using evaluation::VarianceSetting;

constexpr double kDeltas[] = {.5, .1, .01};

std::string lines(const bench::Table& table, Spacing spacing, std::span<const Tail> tails) {
  std::string text;
  for (const Tail& tail : tails) {
    text += table.line({evaluation::name(spacing), tail.samples, tail.delta, tail.quantile, tail.bound,
                        tail.bound / tail.quantile, 100 * tail.beyond});
  }
  return text;
}

std::string json_row(const VarianceSetting& setting, Spacing spacing, const Tail& tail) {
  return bench::json_line({{"keys", setting.keys},
                           {"head_dim", setting.head_dim},
                           {"score_deviation", setting.score_deviation},
                           {"heads", setting.heads},
                           {"replicates", setting.replicates},
                           {"estimator", evaluation::name(spacing)},
                           {"samples", tail.samples},
                           {"delta", tail.delta},
                           {"quantile", tail.quantile},
                           {"bound", tail.bound},
                           {"beyond", tail.beyond},
                           {"seed", setting.seed},
                           {"tool_version", version()}});
}

}  // namespace

int run_analyze_tails(std::span<const std::string> arguments) {
  std::string what, samples = "16,64,256";
  VarianceSetting setting;
  setting.replicates = 1000;
  int64_t seed = 0;
  bool json = false;
  OptionSet set(
      "analyze",
      "distance of one query's sampled attention from exact attention that is passed with a chance of "
      "50, 10 and 1 %, beside the bound of Theorem B.1 of the S2ANTA paper, which is one of independent draws",
      "allot analyze tails --keys 8192 --score-deviation 3 --samples 16,64");
  set.positional_choice("what", &what, {"tails"}, "WHAT", "which analysis");
  set.require("what");
  set.integer("keys", &setting.keys, 1, 1 << 24, "N", "keys that the query sees");
  set.text("samples", &samples, "S,…", "samples of the query");
  set.real("score-deviation", &setting.score_deviation, 0, 100, "X",
           "standard deviation of the scores: 1 is flat, larger is more peaked");
  set.integer("head-dim", &setting.head_dim, 1, 1 << 16, "N", "elements of a value");
  set.integer("heads", &setting.heads, 1, 1 << 20, "N",
              "heads that are averaged, each with scores and values of its own");
  set.integer("replicates", &setting.replicates, 2, 1 << 24, "N", "estimates of each head");
  set.integer("seed", &seed, 0, UINT32_MAX, "N", "seed of all random draws");
  set.integer("threads", &setting.threads, 0, 4096, "N", "threads; 0 takes all cores");
  set.flag("json", &json, "print one JSON object a row");
  if (set.parse(arguments) == OptionSet::Parsed::kDone) return 0;

  setting.seed = static_cast<uint32_t>(seed);
  setting.samples = parse_totals(samples, "--samples");
  const auto& stop = watch_stop_signals();
  const bench::Table table({{"draws", -6},
                            {"samples", 9},
                            {"delta", 8, 2},
                            {"distance", 10, 4},
                            {"bound", 9, 4},
                            {"bound / distance", 17, 2},
                            {"beyond bound %", 15, 2}});
  std::string text = table.head();
  for (const Spacing spacing : {Spacing::kIndependent, Spacing::kStratified, Spacing::kSystematic}) {
    setting.spacing = spacing;
    ProgressLine line(fmt::format("heads, draws as of {}", evaluation::name(spacing)));
    const std::vector<Tail> tails = evaluation::measure_tails(
        setting, kDeltas, [&](int64_t done) { line.update(done, setting.heads); }, &stop);
    if (tails.empty()) throw Error("stopped before all heads were measured; no result is printed");
    if (json) {
      for (const Tail& tail : tails) std::cout << json_row(setting, spacing, tail);
    }
    text += lines(table, spacing, tails);
  }
  if (!json) {
    std::cout
        << fmt::format(
               "Distance of sampled attention over {} keys, scores of standard deviation {}, standard normal values "
               "of {} elements, that is passed with chance delta; means of {} heads with {} estimates each\n",
               setting.keys, setting.score_deviation, setting.head_dim, setting.heads, setting.replicates)
        << text;
  }
  return 0;
}

}  // namespace allot::app
