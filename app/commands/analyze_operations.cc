// allot analyze operations: what attention needs in theory, as in tables 10 and 12 of the S2ANTA paper.
#include <spdlog/fmt/fmt.h>

#include <iostream>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "app/cli/command.h"
#include "app/cli/options.h"
#include "app/cli/version.h"
#include "app/files/schedule_argument.h"
#include "base/json.h"
#include "bench/output.h"
#include "evaluation/operations.h"
#include "kernels/estimator.h"

namespace allot::app {
namespace {

using evaluation::AttentionShape;
using evaluation::Operations;
using evaluation::ValueStage;

struct OperationsRow {
  AttentionShape shape;
  std::string stage;  // scores or values
  std::string estimator;
  std::optional<int64_t> samples;
  Operations operations;
  std::optional<double> of_exact;  // energy, percent of that of exact attention's values
};

std::vector<OperationsRow> rows_of(const AttentionShape& shape, std::span<const int64_t> budgets) {
  std::vector<OperationsRow> rows;
  rows.push_back({shape, "scores", "all", {}, score_operations(shape), {}});
  const Operations exact = value_operations(shape, ValueStage::kExact, 1);
  const auto add = [&](ValueStage stage, std::optional<int64_t> samples) {
    const Operations operations = value_operations(shape, stage, samples.value_or(1));
    rows.push_back({shape, "values", std::string(name(stage)), samples, operations,
                    100 * picojoules(operations) / picojoules(exact)});
  };
  add(ValueStage::kExact, {});
  for (const int64_t samples : budgets)
    for (const ValueStage stage : {ValueStage::kTopK, ValueStage::kCounted, ValueStage::kWeighted})
      add(stage, samples);
  return rows;
}

std::string table(std::span<const OperationsRow> rows) {
  const bench::Table table({{"keys", 8},
                            {"queries", 9},
                            {"", 2},
                            {"stage", -8},
                            {"estimator", -10},
                            {"samples", 8},
                            {"additions", 16},
                            {"mults/divs", 16},
                            {"reads", 16},
                            {"writes", 14},
                            {"nJ", 14, 3},
                            {"of exact %", 12, 2}});
  std::string text = table.head();
  for (const OperationsRow& row : rows) {
    const Operations& o = row.operations;
    text += table.line({row.shape.keys, row.shape.queries, "", row.stage, row.estimator,
                        row.samples ? bench::Cell(*row.samples) : bench::Cell("-"), o.additions,
                        o.multiplications, o.reads, o.writes, picojoules(o) / 1000, row.of_exact});
  }
  return text;
}

std::string json_row(const OperationsRow& row, kernels::DType dtype) {
  const Operations& o = row.operations;
  nlohmann::ordered_json json = {
      {"queries", row.shape.queries}, {"keys", row.shape.keys}, {"head_dim", row.shape.head_dim},
      {"group", row.shape.group},     {"stage", row.stage},     {"estimator", row.estimator}};
  json["samples"] = row.samples ? nlohmann::ordered_json(*row.samples) : nlohmann::ordered_json();
  json["additions"] = o.additions;
  json["multiplications"] = o.multiplications;
  json["reads"] = o.reads;
  json["writes"] = o.writes;
  json["dtype"] = kernels::name(dtype);
  json["read_bytes"] = o.reads * kernels::size_of(dtype);
  json["picojoules"] = picojoules(o);
  json["tool_version"] = version();
  return bench::json_line(json);
}

}  // namespace

int run_analyze_operations(std::span<const std::string> arguments) {
  std::string what, pass = "decode", keys = "1024,8192,32768,131072", samples = "8,32,128",
                    dtype = "bfloat16";
  AttentionShape shape;
  bool json = false;
  OptionSet set("analyze",
                "additions, multiplications, reads and writes of attention in theory, for one query head: "
                "tables 10 (decode) and 12 (prefill) of the S2ANTA paper, and the same of joint",
                "allot analyze operations --keys 8192 --samples 8,128 --group 4");
  set.positional_choice("what", &what, {"operations"}, "WHAT", "which analysis");
  set.require("what");
  set.choice("pass", &pass, {"decode", "prefill"},
             "decode: one query sees all keys; prefill: as many queries as keys, each of which sees all, as "
             "the paper counts");
  set.text("keys", &keys, "N,…", "keys of a sequence");
  set.text("samples", &samples, "S,…", "samples of a query head, or keys of topk");
  set.integer("head-dim", &shape.head_dim, 1, 1 << 16, "N", "elements of a head");
  set.integer("group", &shape.group, 1, 1 << 10, "N",
              "query heads of a KV head: joint reads each of its rows once for all of them");
  set.choice("dtype", &dtype, {"bfloat16", "float32", "float16"},
             "keys and values, for the bytes read that --json prints");
  set.flag("json", &json, "print one JSON object a row");
  if (set.parse(arguments) == OptionSet::Parsed::kDone) return 0;

  const std::vector<int64_t> budgets = parse_totals(samples, "--samples");
  std::vector<OperationsRow> rows;
  for (const int64_t count : parse_totals(keys, "--keys")) {
    shape.keys = count;
    shape.queries = pass == "decode" ? 1 : count;
    for (OperationsRow& row : rows_of(shape, budgets)) rows.push_back(std::move(row));
  }
  if (json) {
    for (const OperationsRow& row : rows) std::cout << json_row(row, kernels::parse_dtype(dtype));
  } else {
    std::cout
        << fmt::format(
               "Scalar operations of one query head of {} elements, {} to a KV head, in a pass; softmax "
               "and sampling are left out. Energy is that of the arithmetic: 3.7 pJ a multiplication, 0.9 "
               "pJ an addition\n",
               shape.head_dim, shape.group)
        << table(rows);
  }
  return 0;
}

}  // namespace allot::app
