// allot analyze fidelity: what sampling costs in fidelity on a model. Analyses that need none: analyze_*.cc.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <iostream>
#include <optional>

#include "app/cli/command.h"
#include "app/cli/stop_signal.h"
#include "app/cli/version.h"
#include "app/report/fidelity_figures.h"
#include "app/report/png.h"
#include "app/scoring/fidelity_engine.h"
#include "app/scoring/fidelity_plan.h"
#include "app/view/progress_line.h"
#include "base/error.h"
#include "base/json.h"
#include "bench/output.h"
#include "evaluation/fidelity.h"
#include "model/engine.h"
#include "model/engine_divergence.h"
#include "model/weight_storage.h"

namespace allot::app {
namespace {

using evaluation::FidelityRow;
using evaluation::TextFidelity;

// A row of the table.
struct MeasuredCase {
  const FidelityCase* sampled = nullptr;  // null: exact attention, over a simulated cache
  kernels::CacheFormats simulated_cache = {};
};

std::vector<MeasuredCase> measured_cases(const FidelityPlan& plan) {
  std::vector<MeasuredCase> cases;
  for (const FidelityCase& one : plan.cases) cases.push_back({.sampled = &one});
  for (const kernels::CacheFormats& formats : plan.simulated_caches) {
    cases.push_back({.simulated_cache = formats});
    for (const FidelityCase& one : plan.cases) cases.push_back({.sampled = &one, .simulated_cache = formats});
  }
  return cases;
}

model::FidelityPair pair_of(const MeasuredCase& one, size_t text) {
  model::FidelityPair pair{.text = text, .simulated_cache = one.simulated_cache};
  if (one.sampled == nullptr) {
    pair.attention.estimator = kernels::Estimator::kExact;
  } else {
    pair.samples = one.sampled->schedule.schedule->samples;
    pair.attention = one.sampled->method;
  }
  return pair;
}

// Texts begin .. end - 1 of the plan, under every case: [end - begin, cases]. Rows are counted in passes of
// their own, since counting takes time where heads choose for themselves.
std::vector<model::Fidelity> measure(const FidelityPlan& plan, std::span<const MeasuredCase> cases,
                                     size_t begin, size_t end, model::Engine& engine) {
  std::vector<model::FidelityText> texts;
  std::vector<model::FidelityPair> pairs, counted_pairs;
  for (size_t i = begin; i < end; ++i) {
    texts.push_back(fidelity_text(plan, plan.texts[i], 0));
    for (const MeasuredCase& one : cases) {
      pairs.push_back(pair_of(one, i - begin));
      if (!one.simulated_cache.any()) counted_pairs.push_back(pairs.back());
    }
  }
  const model::FidelityMode mode = fidelity_mode(plan.options.mode);
  std::vector<model::Fidelity> results = engine.fidelity(texts, pairs, {.mode = mode, .timed = true});
  const std::vector<model::Fidelity> counted =
      engine.fidelity(texts, counted_pairs, {.mode = mode, .count_rows = true});
  for (size_t i = 0, next = 0; i < results.size(); ++i)
    if (!pairs[i].simulated_cache.any()) results[i].rows_read = counted[next++].rows_read;
  return results;
}

// The end of a stretch of texts that keep the engine busy for a while: as many tokens as a pass has.
size_t stretch_end(const FidelityPlan& plan, size_t begin, int64_t most_tokens) {
  int64_t tokens = std::ssize(plan.texts[begin].ids);
  size_t end = begin + 1;
  for (; end < plan.texts.size(); ++end) {
    tokens += std::ssize(plan.texts[end].ids);
    if (tokens > most_tokens) break;
  }
  return end;
}

// How far exact attention of the plan's engine is from that of one that keeps a thing in the dtype.
struct StorageDivergence {
  std::string what;  // "weights", "keys"
  std::string format;
  evaluation::FidelitySummary summary;
};

evaluation::FidelitySummary measure_against(const model::EngineOptions& options, const FidelityPlan& plan,
                                            model::Engine& engine) {
  model::Engine reference(plan.options.model, options);
  const auto& stop = watch_stop_signals();
  ProgressLine line("texts");
  std::vector<TextFidelity> of_texts;
  for (const FidelityItem& item : plan.texts) {
    if (stop.load()) throw Error("stopped before all texts were measured; no result is printed");
    of_texts.push_back(text_fidelity(model::engine_divergence(reference, engine, fidelity_text(plan, item, 0),
                                                              fidelity_mode(plan.options.mode))));
    line.update(std::ssize(of_texts), std::ssize(plan.texts));
  }
  return evaluation::summarise(of_texts, 0, plan.conditions.model.num_kv_heads);
}

// Of weights and of keys that are not as the dtype has them; the one that is not compared is as the plan
// says.
std::vector<StorageDivergence> measure_storage(const FidelityPlan& plan, model::Engine& engine) {
  std::vector<StorageDivergence> measured;
  const auto measure = [&](const char* what, const std::string& format, auto model::EngineOptions::*storage,
                           auto of_dtype) {
    if (engine.options().*storage == of_dtype) return;
    model::EngineOptions options = fidelity_engine_options(plan);
    options.*storage = of_dtype;
    measured.push_back({.what = what, .format = format, .summary = measure_against(options, plan, engine)});
  };
  measure("weights", plan.options.weights, &model::EngineOptions::weights, model::WeightStorage::kDtype);
  measure("keys", plan.options.keys, &model::EngineOptions::keys, kernels::KeyFormat::kSixteenBits);
  return measured;
}

FidelityRow row_of(const MeasuredCase& one, std::span<const TextFidelity> texts, const FidelityPlan& plan) {
  const int32_t num_kv_heads = plan.conditions.model.num_kv_heads;
  FidelityRow row;
  if (one.simulated_cache.any()) row.simulated_cache = one.simulated_cache;
  if (one.sampled == nullptr) {
    row.method.estimator = kernels::Estimator::kExact;
    row.method.prefill = kernels::Prefill::kDense;
    row.schedule = "dense";
    row.exact_layers = plan.conditions.model.layers;
    row.summary = evaluation::summarise(texts, 0, num_kv_heads);
    return row;
  }
  const policy::Schedule& schedule = *one.sampled->schedule.schedule;
  const int64_t sampled = sampled_layers(schedule.samples);
  row.method = one.sampled->method;
  row.schedule = one.sampled->schedule.label;
  row.samples = sampled == 0 ? 0 : static_cast<double>(schedule.total()) / static_cast<double>(sampled);
  row.exact_layers = exact_layers(schedule.samples);
  row.summary = evaluation::summarise(texts, sampled, num_kv_heads);
  return row;
}

std::vector<FidelityRow> measure(const FidelityPlan& plan, model::Engine& engine) {
  const auto& stop = watch_stop_signals();
  const std::vector<MeasuredCase> cases = measured_cases(plan);
  // What happens once, memory that is first touched and algorithms that are chosen, is not timed.
  (void)measure(plan, std::span(cases).first(plan.cases.size()), 0, 1, engine);
  std::vector<std::vector<TextFidelity>> of_cases(cases.size());
  ProgressLine line("texts");
  const int64_t most_tokens = model::max_pass_tokens(engine.options());
  for (size_t begin = 0; begin < plan.texts.size();) {
    if (stop.load()) throw Error("stopped before all texts were measured; no result is printed");
    const size_t end = stretch_end(plan, begin, most_tokens);
    const std::vector<model::Fidelity> results = measure(plan, cases, begin, end, engine);
    for (size_t i = 0; i < results.size(); ++i)
      of_cases[i % cases.size()].push_back(text_fidelity(results[i]));
    begin = end;
    line.update(static_cast<int64_t>(begin), std::ssize(plan.texts));
  }
  std::vector<FidelityRow> rows;
  for (size_t i = 0; i < cases.size(); ++i) rows.push_back(row_of(cases[i], of_cases[i], plan));
  return rows;
}

std::string cache_name(const FidelityRow& row) {
  return row.simulated_cache ? kernels::name(*row.simulated_cache) : "as it is";
}

std::string table(std::span<const FidelityRow> rows) {
  const std::string unit(kernels::name(rows.front().method.unit));  // of all
  int width = 8, cache_width = 15;
  bool simulates = false;
  for (const FidelityRow& row : rows) {
    width = std::max(width, static_cast<int>(row.schedule.size()));
    cache_width = std::max(cache_width, static_cast<int>(cache_name(row).size()));
    simulates |= row.simulated_cache.has_value();
  }
  // The cache is a column of its own where one is simulated.
  const auto named = [&](const std::string& schedule, const std::string& cache) {
    return simulates ? fmt::format("{:<{}}{}", schedule, width + 2, cache) : schedule;
  };
  const bench::Table table(
      {{"estimator", -11},
       {named("schedule", "simulated cache"), -(width + 2 + (simulates ? cache_width + 2 : 0))},
       {unit, 9, 1},
       {"exact", 7},
       {"texts", 8},
       {"tokens", 10},
       {"divergence", 13},
       {"std error", 11},
       {"top-1 %", 10, 2},
       {"rows/KV head", 14, 1},
       {"us/token", 11, 2},
       {"logits us", 12, 2}});
  std::string text = table.head();
  for (const FidelityRow& row : rows) {
    const evaluation::FidelitySummary& summary = row.summary;
    const auto scientific = [](const std::optional<double>& number) {
      return number ? fmt::format("{:.3e}", *number) : std::string("-");
    };
    const auto time = [&](double microseconds) {
      return row.simulated_cache ? std::nullopt : std::optional(microseconds);
    };
    text += table.line({kernels::name(row.method.estimator), named(row.schedule, cache_name(row)),
                        row.samples, row.exact_layers, summary.texts, summary.tokens,
                        scientific(summary.divergence), scientific(summary.divergence_error),
                        100 * summary.top1_agreement, summary.rows_per_kv_head, time(summary.microseconds),
                        time(summary.comparison_microseconds)});
  }
  return text;
}

void add_circumstances(const FidelityPlan& plan, const kernels::AttentionMethod& method,
                       nlohmann::ordered_json* json) {
  (*json)["mode"] = plan.options.mode;
  (*json)["device"] = plan.options.device;
  (*json)["threads"] = plan.options.threads;
  (*json)["tool_version"] = version();
  evaluation::Conditions conditions = plan.conditions;
  conditions.attention = method;
  (*json)["conditions"] = evaluation::to_json(conditions);
}

std::string json_line(const FidelityRow& row, const FidelityPlan& plan) {
  nlohmann::ordered_json json = evaluation::to_json(row);
  add_circumstances(plan, row.method, &json);
  return bench::json_line(json);
}

std::string storage_line(const StorageDivergence& measured, const FidelityPlan& plan) {
  const evaluation::FidelitySummary& summary = measured.summary;
  return fmt::format(
      "{} {} against those of {}, exact attention, {} texts, {} positions: divergence {:.3e}{}, top-1 "
      "{:.2f} %\n",
      measured.what, measured.format, plan.options.dtype, summary.texts, summary.positions,
      summary.divergence,
      summary.divergence_error ? fmt::format(" (standard error {:.1e})", *summary.divergence_error) : "",
      100 * summary.top1_agreement);
}

std::string storage_json_line(const StorageDivergence& measured, const FidelityPlan& plan) {
  const evaluation::FidelitySummary& summary = measured.summary;
  nlohmann::ordered_json json = {
      {"what", measured.what},
      {"against", plan.options.dtype},
      {"texts", summary.texts},
      {"tokens", summary.tokens},
      {"positions", summary.positions},
      {"divergence", summary.divergence},
      {"divergence_standard_error",
       summary.divergence_error ? nlohmann::json(*summary.divergence_error) : nlohmann::json()},
      {"top1_agreement", summary.top1_agreement}};
  add_circumstances(plan, {.estimator = kernels::Estimator::kExact}, &json);
  return bench::json_line(json);
}

}  // namespace

int run_analyze(std::span<const std::string> arguments) {
  FidelityPlanOptions options;
  std::string what;
  std::filesystem::path out;
  bool png = false, json = false;
  OptionSet set("analyze",
                "measure how far sampled attention takes the next-token distributions from exact attention's",
                "allot analyze fidelity --model assets/tiny-gsm --data assets/tiny-gsm/heldout.jsonl "
                "--estimator sys,threshold --samples 4,8,16,32 --limit 32");
  set.positional_choice("what", &what, {"fidelity"}, "WHAT", "which analysis");
  set.require("what");
  declare_fidelity_options(&set, &options);
  set.path("out", &out, "folder for plots of the divergence against samples, value rows and time, as SVG");
  set.flag("png", &png, "draw the plots as PNG files too (needs rsvg-convert of the package librsvg2-bin)");
  set.flag("json", &json, "print one JSON object a row");
  FidelityPlan plan;
  set.resolve_with([&] {
    if (png && out.empty()) throw UsageError("--png needs --out DIR, the folder of the plots");
    plan = plan_fidelity(&options, &set);
  });
  if (set.parse(arguments) == OptionSet::Parsed::kDone) return 0;

  model::Engine engine(plan.options.model, fidelity_engine_options(plan));
  const std::vector<FidelityRow> rows = measure(plan, engine);
  const std::vector<StorageDivergence> of_storage = measure_storage(plan, engine);
  if (json) {
    for (const StorageDivergence& measured : of_storage) std::cout << storage_json_line(measured, plan);
    for (const FidelityRow& row : rows) std::cout << json_line(row, plan);
  } else {
    std::cout << describe(plan);
    for (const StorageDivergence& measured : of_storage) std::cout << storage_line(measured, plan);
    std::cout << "\n" << table(rows);
  }
  if (out.empty()) return 0;
  const std::span own_cache(rows.data(), plan.cases.size());  // a figure has times, and costs of one cache
  list_plots(write_fidelity_plots(own_cache, out), png, std::cerr);
  return 0;
}

}  // namespace allot::app
