// allot analyze bernoulli: errors of scores by Bernoulli queries, and what they read of the keys, as in
// figure 6 of the S2ANTA paper.
#include <spdlog/fmt/fmt.h>

#include <iostream>
#include <string>
#include <vector>

#include "app/cli/command.h"
#include "app/cli/options.h"
#include "app/cli/stop_signal.h"
#include "app/cli/version.h"
#include "app/commands/seed_and_threads.h"
#include "app/files/schedule_argument.h"
#include "app/view/progress_line.h"
#include "base/error.h"
#include "base/json.h"
#include "bench/output.h"
#include "evaluation/bernoulli_error.h"

namespace allot::app {
namespace {

using evaluation::BernoulliError;
using evaluation::BernoulliSetting;

std::string_view name_of(bool stratified) {
  return stratified ? "bernoulli-strat" : "bernoulli";
}

std::string table(std::span<const BernoulliError> independent, std::span<const BernoulliError> stratified) {
  const bench::Table table({{"draws", -16},
                            {"B", 6},
                            {"error %", 10, 2},
                            {"std error", 10, 2},
                            {"of bernoulli's", 15, 3},
                            {"features %", 11, 1},
                            {"sectors %", 10, 1}});
  std::string text = table.head();
  for (const bool strat : {false, true}) {
    const auto& rows = strat ? stratified : independent;
    for (size_t i = 0; i < rows.size(); ++i) {
      const BernoulliError& row = rows[i];
      text += table.line({name_of(strat), row.budget, 100 * row.error, 100 * row.standard_error,
                          row.error / independent[i].error, 100 * row.features, 100 * row.sectors});
    }
  }
  return text;
}

std::string json_row(const BernoulliSetting& setting, const BernoulliError& row) {
  return bench::json_line({{"keys", setting.keys},
                           {"head_dim", setting.head_dim},
                           {"group", setting.group},
                           {"instances", setting.instances},
                           {"score_stage", name_of(setting.stratified)},
                           {"budget", row.budget},
                           {"error", row.error},
                           {"standard_error", row.standard_error},
                           {"features", row.features},
                           {"sectors", row.sectors},
                           {"seed", setting.seed},
                           {"tool_version", version()}});
}

}  // namespace

int run_analyze_bernoulli(std::span<const std::string> arguments) {
  std::string what, budgets = "1,2,4,8,16";
  BernoulliSetting setting;
  int64_t seed = 0;
  bool json = false;
  OptionSet set(
      "analyze",
      "error of scores by Bernoulli queries, and the share of the keys' features and sectors read, with "
      "normally distributed queries and keys: figure 6 of the S2ANTA paper",
      "allot analyze bernoulli --budgets 1,2,4,8 --group 4");
  set.positional_choice("what", &what, {"bernoulli"}, "WHAT", "which analysis");
  set.require("what");
  set.text("budgets", &budgets, "B,…", "Bernoulli draws of an element");
  set.integer("keys", &setting.keys, 1, 1 << 24, "N", "keys that a query sees");
  set.integer("head-dim", &setting.head_dim, 1, 1 << 16, "N", "elements of a head");
  set.integer("group", &setting.group, 1, 1 << 16, "N",
              "query heads of a KV head; more than one draw by their mean query");
  set.integer("instances", &setting.instances, 2, 1 << 20, "N", "queries, each with keys of its own");
  declare_seed_and_threads(&set, &seed, &setting.threads);
  set.flag("json", &json, "print one JSON object a row");
  if (set.parse(arguments) == OptionSet::Parsed::kDone) return 0;

  setting.seed = static_cast<uint32_t>(seed);
  setting.budgets = parse_totals(budgets, "--budgets");
  const auto& stop = watch_stop_signals();
  std::vector<BernoulliError> measured[2];
  for (const bool stratified : {false, true}) {
    setting.stratified = stratified;
    ProgressLine line(fmt::format("queries, draws as of {}", name_of(stratified)));
    measured[stratified] = evaluation::measure_bernoulli(
        setting, [&](int64_t done) { line.update(done, setting.instances); }, &stop);
    if (measured[stratified].empty())
      throw Error("stopped before all queries were measured; no result is printed");
    if (json)
      for (const BernoulliError& row : measured[stratified]) std::cout << json_row(setting, row);
  }
  if (!json) {
    std::cout
        << fmt::format(
               "|estimated - exact scores| / |exact scores| over {} keys of {} elements, groups of {}; means of "
               "{} queries\n",
               setting.keys, setting.head_dim, setting.group, setting.instances)
        << table(measured[0], measured[1]);
  }
  return 0;
}

}  // namespace allot::app
