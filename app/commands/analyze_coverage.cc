// allot analyze coverage: the value rows that a prefill reads at least once, as in table 11 of the S2ANTA
// paper.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
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
#include "evaluation/coverage.h"

namespace allot::app {
namespace {

using evaluation::Coverage;
using evaluation::CoverageSetting;

// Rows of a head differ by chance, so short sequences need more heads.
constexpr int64_t kRowsInAll = 65536;

struct CoverageRow {
  CoverageSetting setting;
  Coverage coverage;
};

std::string table(std::span<const CoverageRow> rows) {
  const bench::Table table({{"keys", 8},
                            {"heads", 7},
                            {"samples", 9},
                            {"rows read %", 13, 2},
                            {"std error", 11, 2},
                            {"S / (S + 1) %", 15, 2}});
  std::string text = table.head();
  for (const CoverageRow& row : rows)
    text += table.line({row.setting.keys, row.setting.heads, row.coverage.samples, 100 * row.coverage.share,
                        100 * row.coverage.standard_error,
                        100 * evaluation::expected_coverage(row.coverage.samples)});
  return text;
}

std::string json_row(const CoverageRow& row) {
  return bench::json_line({{"keys", row.setting.keys},
                           {"head_dim", row.setting.head_dim},
                           {"heads", row.setting.heads},
                           {"estimator", evaluation::name(row.setting.spacing)},
                           {"samples", row.coverage.samples},
                           {"share", row.coverage.share},
                           {"standard_error", row.coverage.standard_error},
                           {"expected", evaluation::expected_coverage(row.coverage.samples)},
                           {"seed", row.setting.seed},
                           {"tool_version", version()}});
}

}  // namespace

int run_analyze_coverage(std::span<const std::string> arguments) {
  std::string what, keys = "1024,2048,4096,8192,16384", samples = "1,4,8,16", estimator = "iid";
  CoverageSetting setting;
  int64_t heads = 0, seed = 0;
  bool json = false;
  OptionSet set(
      "analyze",
      "share of the value rows that a causal prefill reads at least once, all its queries together, "
      "with normally distributed queries and keys: table 11 of the S2ANTA paper",
      "allot analyze coverage --keys 1024,4096 --samples 1,4,8,16");
  set.positional_choice("what", &what, {"coverage"}, "WHAT", "which analysis");
  set.require("what");
  set.text("keys", &keys, "N,…", "keys, and queries, of a sequence; time grows with the square");
  set.text("samples", &samples, "S,…", "samples of each query");
  set.choice("estimator", &estimator, {"iid", "strat", "sys"}, "how the samples are drawn");
  set.integer("head-dim", &setting.head_dim, 1, 1 << 16, "N", "elements of a head");
  set.integer("heads", &heads, 0, 1 << 20, "N",
              "heads that are averaged, each with queries and keys of its own, two at least; 0: so many that "
              "they have 65,536 rows in all");
  declare_seed_and_threads(&set, &seed, &setting.threads);
  set.flag("json", &json, "print one JSON object a row");
  if (set.parse(arguments) == OptionSet::Parsed::kDone) return 0;

  setting.spacing = evaluation::parse_spacing(estimator);
  setting.seed = static_cast<uint32_t>(seed);
  setting.samples = parse_totals(samples, "--samples");
  const auto& stop = watch_stop_signals();
  std::vector<CoverageRow> rows;
  for (const int64_t count : parse_totals(keys, "--keys")) {
    setting.keys = count;
    setting.heads = heads > 0 ? heads : std::max<int64_t>(4, kRowsInAll / count);
    ProgressLine line(fmt::format("heads of {} keys", count));
    const std::vector<Coverage> measured = evaluation::measure_coverage(
        setting, [&](int64_t done) { line.update(done, setting.heads); }, &stop);
    if (measured.empty()) throw Error("stopped before all heads were measured; no result is printed");
    for (const Coverage& coverage : measured) rows.push_back({setting, coverage});
  }
  if (json) {
    for (const CoverageRow& row : rows) std::cout << json_row(row);
  } else {
    std::cout << fmt::format(
                     "Value rows that the queries of a causal prefill read at least once, draws as of {}, "
                     "heads of {} elements\n",
                     estimator, setting.head_dim)
              << table(rows);
  }
  return 0;
}

}  // namespace allot::app
