// allot analyze amdahl: from which context on sampling pays, by what a decode step reads and by what it
// takes.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "app/cli/command.h"
#include "app/cli/options.h"
#include "app/cli/version.h"
#include "app/files/schedule_argument.h"
#include "app/run/model_options.h"
#include "base/error.h"
#include "base/json.h"
#include "bench/output.h"
#include "episode/samples.h"
#include "evaluation/decode_bytes.h"
#include "evaluation/step_times.h"
#include "kernels/cache_format.h"
#include "model/model_config.h"
#include "model/weight_storage.h"

namespace allot::app {
namespace {

using evaluation::ContextTimes;
using evaluation::DecodeBytes;
using evaluation::DecodeShape;
using evaluation::StepTimes;

constexpr double kGiga = 1e9;

struct AmdahlRow {
  DecodeShape shape;
  DecodeBytes exact;
  DecodeBytes sampled;
  double of_attention = 0;  // the step's speedup where attention has the one that was asked for
  std::optional<ContextTimes> measured = {};

  double most() const { return static_cast<double>(exact.total()) / static_cast<double>(sampled.total()); }
  std::optional<double> measured_speedup() const {
    if (!measured) return {};
    return measured->dense.median / measured->schedule.median;
  }
};

std::string table(std::span<const AmdahlRow> rows, double attention_speedup) {
  const bench::Table table({{"keys", 8},
                            {"weights GB", 11, 2},
                            {"KV GB", 8, 2},
                            {"KV %", 7, 1},
                            {"sampled KV GB", 14, 2},
                            {"at most", 9, 2},
                            {fmt::format("attention x{:.3g}", attention_speedup), 16, 2},
                            {"measured", 9, 2}});
  std::string text = table.head();
  for (const AmdahlRow& row : rows) {
    const auto kv = static_cast<double>(row.exact.keys + row.exact.values);
    text += table.line({row.shape.keys, static_cast<double>(row.exact.weights) / kGiga, kv / kGiga,
                        100 * kv / static_cast<double>(row.exact.total()),
                        static_cast<double>(row.sampled.keys + row.sampled.values) / kGiga, row.most(),
                        row.of_attention, row.measured_speedup()});
  }
  return text;
}

std::string json_row(const AmdahlRow& row, double attention_speedup) {
  nlohmann::ordered_json json = {{"keys", row.shape.keys},
                                 {"sequences", row.shape.sequences},
                                 {"weight_bytes", row.exact.weights},
                                 {"key_bytes", row.exact.keys},
                                 {"value_bytes", row.exact.values},
                                 {"sampled_value_bytes", row.sampled.values},
                                 {"speedup_at_most", row.most()},
                                 {"attention_speedup", attention_speedup},
                                 {"speedup_of_attention", row.of_attention}};
  json["weights"] = model::name(row.shape.weights);
  json["key_format"] = kernels::name(row.shape.key_format);
  json["value_format"] = kernels::name(row.shape.value_format);
  json["measured_speedup"] = bench::json_number(row.measured_speedup());
  if (row.measured) {
    json["dense_microseconds"] = row.measured->dense.median;
    json["schedule_microseconds"] = row.measured->schedule.median;
  }
  json["tool_version"] = version();
  return bench::json_line(json);
}

// "8 samples a query head": the mean of the layers that sample.
std::string budget_text(const policy::Schedule& schedule, kernels::BudgetUnit unit) {
  const auto layers = static_cast<double>(std::max<int64_t>(1, sampled_layers(schedule.samples)));
  return fmt::format("{:.3g} {}", static_cast<double>(schedule.total()) / layers,
                     unit == kernels::BudgetUnit::kRows ? "value rows a KV head" : "samples a query head");
}

// A difference counts where 5 to 95 % of the steps of the one lie apart from those of the other.
std::string pays(const StepTimes& times) {
  const auto apart = [](const ContextTimes& at) { return at.schedule.high < at.dense.low; };
  auto first = times.contexts.end();
  while (first != times.contexts.begin() && apart(*std::prev(first))) --first;
  if (first == times.contexts.end())
    return fmt::format(
        "On {} the schedule takes less time than exact attention at none of the contexts up to {} keys.\n",
        times.device, times.contexts.back().context);
  return fmt::format("On {} the schedule takes less time than exact attention from {} keys on.\n",
                     times.device, first->context);
}

// The times of a run are of its schedule and its batch, so these say what is compared.
void check_times(const StepTimes& times, const model::ModelConfig& config, const std::string& place) {
  const model::ModelIdentity& timed = times.conditions.model;
  if (timed.layers == config.num_layers && timed.num_q_heads == config.num_q_heads &&
      timed.num_kv_heads == config.num_kv_heads && timed.head_dim == config.head_dim)
    return;
  throw UsageError(fmt::format(
      "{} is of a model of {} layers, {} query and {} KV heads of {}, --model has {} layers, {} and {} heads of {}",
      place, timed.layers, timed.num_q_heads, timed.num_kv_heads, timed.head_dim, config.num_layers,
      config.num_q_heads, config.num_kv_heads, config.head_dim));
}

}  // namespace

int run_analyze_amdahl(std::span<const std::string> arguments) {
  std::string what, keys = "1024,2048,4096,8192,16384,32768,65536,131072";
  std::filesystem::path model, step_times;
  DecodeShape shape;
  int64_t samples = 128;
  double attention_speedup = 1.5;
  bool json = false;
  OptionSet set(
      "analyze",
      "how much faster a decode step can become by sampling: by the bytes that it reads, for a given speedup "
      "of attention (S2ANTA paper, section 3.5), and as allot bench schedule measured it",
      "allot analyze amdahl --model DIR --sequences 6 --keys 30000 --samples 128");
  set.positional_choice("what", &what, {"amdahl"}, "WHAT", "which analysis");
  set.require("what");
  declare_model_option(&set, &model, "model, of which config.json is enough");
  set.require("model");
  set.path(
      "step-times", &step_times,
      "step-times.json of a run, as allot bench schedule wrote it: its contexts and sequences are taken");
  set.text("keys", &keys, "N,…", "keys of each sequence");
  set.integer("sequences", &shape.sequences, 1, 1 << 20, "N", "sequences decoded together");
  set.integer("samples", &samples, 1, 1'000'000, "S", "samples of a query head in every layer");
  set.integer("bytes", &shape.bytes_per_element, 1, 8, "N",
              "bytes of an element of weights, keys and values");
  set.choice("weights", &shape.weights, model::parse_weight_storage, weight_storage_names(),
             "weights of products, as of an engine's option --weights");
  set.choice("key-format", &shape.key_format, kernels::parse_cache_format, kernels::cache_format_names(),
             "how the cache has keys; dtype, split and high are allot's own (--keys of an engine)");
  set.choice("value-format", &shape.value_format, kernels::parse_cache_format, kernels::cache_format_names(),
             "how the cache has values; allot's own is dtype");
  set.real("attention-speedup", &attention_speedup, 0.01, 1000, "X",
           "by which factor attention alone is faster");
  set.flag("json", &json, "print one JSON object a row");
  if (set.parse(arguments) == OptionSet::Parsed::kDone) return 0;

  const model::ModelConfig config = model::read_model_config(model);
  std::optional<StepTimes> times;
  std::vector<int64_t> contexts;
  policy::Schedule schedule;
  kernels::BudgetUnit unit = kernels::BudgetUnit::kSamples;
  if (step_times.empty()) {
    contexts = parse_totals(keys, "--keys");
  } else {
    if (set.given("keys") || set.given("sequences"))
      throw UsageError("--keys and --sequences are those of --step-times; leave them out");
    times = evaluation::read_step_times(step_times);
    check_times(*times, config, step_times.string());
    shape.sequences = times->sequences;
    for (const ContextTimes& at : times->contexts) contexts.push_back(at.context);
    if (!set.given("samples")) {
      schedule = times->schedule;
      unit = times->conditions.attention.unit;
    }
  }
  if (schedule.samples.empty())
    schedule = policy::uniform_schedule(config.num_layers, static_cast<int32_t>(samples));
  std::vector<AmdahlRow> rows;
  for (size_t i = 0; i < contexts.size(); ++i) {
    shape.keys = contexts[i];
    AmdahlRow row{.shape = shape,
                  .exact = exact_bytes(config, shape),
                  .sampled = sampled_bytes(config, shape, schedule, unit)};
    row.of_attention = step_speedup(row.exact, attention_speedup);
    if (times) row.measured = times->contexts[i];
    rows.push_back(std::move(row));
  }
  if (json) {
    for (const AmdahlRow& row : rows) std::cout << json_row(row, attention_speedup);
    return 0;
  }
  std::cout
      << fmt::format(
             "Bytes that a decode step of {} sequence{} reads, and how many times as fast it becomes: at most, with {} "
             "of a layer, if reading were all; if attention alone were {:.3g} times as fast{}\n",
             shape.sequences, shape.sequences == 1 ? "" : "s", budget_text(schedule, unit), attention_speedup,
             times ? "; and as measured" : "")
      << table(rows, attention_speedup);
  if (times) std::cout << pays(*times);
  return 0;
}

}  // namespace allot::app
