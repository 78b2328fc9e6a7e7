// allot bench attention: allot's CUDA kernels beside the exact attention of PyTorch, in one process.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <iostream>
#include <string>
#include <string_view>

#include "app/cli/command.h"
#include "app/cli/options.h"
#include "app/cli/version.h"
#include "app/run/attention_options.h"
#include "base/error.h"
#include "bench/attention/attention_bench.h"
#include "bench/attention/report.h"
#include "bench/attention/shapes.h"
#include "kernels/estimator.h"

namespace allot::app {
namespace {

// Of the two that --flush offers.
bench::attention::Flush parse_flush(std::string_view text) {
  using enum bench::attention::Flush;
  return text == name(kRead) ? kRead : kUpdate;
}

}  // namespace

int run_bench_attention(std::span<const std::string> arguments) {
  using namespace bench::attention;
  std::string what = "attention";
  std::string shapes;
  std::string estimators;
  std::string keys = "16-bit";
  std::string layout = "both";
  std::string dtype = "bfloat16";
  bool no_peers = false;
  bool json = false;
  AttentionWorkload workload;
  OptionSet set("bench", "measure decode attention on a CUDA GPU, beside PyTorch's FlashAttention and cuDNN",
                "allot bench attention --shapes 16x32k,64x2k --estimators sys,exact --json");
  set.positional("what", &what, "WHAT", "attention");
  set.text("shapes", &shapes, "NAME,...", "shapes to measure, by the names in the table; all without it");
  set.text("estimators", &estimators, "NAME,...", "estimators to measure; all without it");
  set.suggest("estimators", kernels::estimator_names(true));
  set.text("keys", &keys, "FORMAT,...",
           fmt::format("keys of allot's kernels: {}; a row for each, but for exact attention over one plane",
                       kernels::kKeyFormatsHelp)
               .c_str());
  set.choice("layout", &layout, {"paged", "contiguous", "both"},
             "cache of allot's kernels: shuffled pages, one page a sequence, or a row for each");
  set.integer("page-size", &workload.page_size, 16, 1 << 20, "TOKENS", "tokens of a page, a multiple of 16");
  set.choice("dtype", &dtype, {"bfloat16", "float16"}, "numbers of query, cache and output");
  set.real("score-deviation", &workload.score_deviation, 0.0, 1000.0, "X",
           "standard deviation of the scores: 1 is flat, larger is more peaked");
  declare_estimator_settings(&set, &workload.method);
  declare_score_options(&set, &workload.method);
  set.flag("no-peers", &no_peers, "leave PyTorch's kernels out");
  set.integer("warmups", &workload.warmups, 0, 10'000, "N", "runs before the timed ones");
  set.integer("runs", &workload.runs, 1, 100'000, "N", "timed runs");
  set.choice("flush", &workload.flush, parse_flush,
             {std::string(name(Flush::kUpdate)), std::string(name(Flush::kRead))},
             "what empties the caches before each run: an update leaves them full of what is still to be "
             "written, a read does not");
  set.flag("json", &json, "print one JSON object a row");
  if (set.parse(arguments) == OptionSet::Parsed::kDone) return 0;
  if (what != "attention") {
    throw UsageError("'" + what + "' is not measured by allot-bench; attention is expected");
  }
  if (workload.page_size % 16 != 0) {
    throw UsageError("--page-size is " + std::to_string(workload.page_size) + ", expected a multiple of 16");
  }
  workload.shapes = select_shapes(shapes);
  workload.estimators = select_estimators(estimators);
  workload.key_formats = select_key_formats(keys);
  workload.with_peers = !no_peers;
  workload.paged = layout != "contiguous";
  workload.contiguous = layout != "paged";
  workload.dtype = kernels::parse_dtype(dtype);

  Machine machine;
  Conditions conditions;
  // Rows are flushed one by one: a fault of the device must not take the finished ones along.
  const Listener listener = {
      .start =
          [&](const Machine& on, const Conditions& under) {
            machine = on;
            conditions = under;
            if (!json) std::cout << table_head(machine, conditions) << std::flush;
          },
      .row =
          [&](const Row& row) {
            std::cout << (json ? row_line(row, machine, conditions) : table_line(row, machine)) << std::flush;
          },
  };
  const int failures = run_attention_bench(workload, version(), listener);
  if (failures > 0) {
    throw Error(std::to_string(failures) +
                " rows of allot's own kernels failed; the notes of those rows say why");
  }
  return 0;
}

}  // namespace allot::app
