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

// Texts begin .. end - 1 of the plan, under every case: [end - begin, cases]. Rows are counted in passes of
// their own, since counting takes time where heads choose for themselves.
std::vector<model::Fidelity> measure(const FidelityPlan& plan, size_t begin, size_t end,
                                     model::Engine& engine) {
  std::vector<model::FidelityText> texts;
  std::vector<model::FidelityPair> pairs;
  for (size_t i = begin; i < end; ++i) {
    texts.push_back(fidelity_text(plan, plan.texts[i], 0));
    for (const FidelityCase& one : plan.cases)
      pairs.push_back(
          {.text = i - begin, .samples = one.schedule.schedule->samples, .attention = one.method});
  }
  const model::FidelityMode mode = fidelity_mode(plan.options.mode);
  std::vector<model::Fidelity> results = engine.fidelity(texts, pairs, {.mode = mode, .timed = true});
  const std::vector<model::Fidelity> counted =
      engine.fidelity(texts, pairs, {.mode = mode, .count_rows = true});
  for (size_t i = 0; i < results.size(); ++i) results[i].rows_read = counted[i].rows_read;
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

// How far exact attention with the plan's weights is from that with all weights of the dtype; nothing where
// they are the same.
std::optional<evaluation::FidelitySummary> measure_weights(const FidelityPlan& plan, model::Engine& engine) {
  if (engine.options().weights == model::WeightStorage::kDtype) return std::nullopt;
  model::EngineOptions options = fidelity_engine_options(plan);
  options.weights = model::WeightStorage::kDtype;
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

std::vector<FidelityRow> measure(const FidelityPlan& plan, model::Engine& engine) {
  const auto& stop = watch_stop_signals();
  // What happens once, memory that is first touched and algorithms that are chosen, is not timed.
  (void)measure(plan, 0, 1, engine);
  std::vector<std::vector<TextFidelity>> of_cases(plan.cases.size());
  ProgressLine line("texts");
  const int64_t most_tokens = model::max_pass_tokens(engine.options());
  for (size_t begin = 0; begin < plan.texts.size();) {
    if (stop.load()) throw Error("stopped before all texts were measured; no result is printed");
    const size_t end = stretch_end(plan, begin, most_tokens);
    const std::vector<model::Fidelity> results = measure(plan, begin, end, engine);
    for (size_t i = 0; i < results.size(); ++i)
      of_cases[i % plan.cases.size()].push_back(text_fidelity(results[i]));
    begin = end;
    line.update(static_cast<int64_t>(begin), std::ssize(plan.texts));
  }
  std::vector<FidelityRow> rows;
  for (size_t i = 0; i < plan.cases.size(); ++i) {
    const policy::Schedule& schedule = *plan.cases[i].schedule.schedule;
    const int64_t sampled = sampled_layers(schedule.samples);
    const int32_t num_kv_heads = plan.conditions.model.num_kv_heads;
    rows.push_back(
        {.method = plan.cases[i].method,
         .schedule = plan.cases[i].schedule.label,
         .samples = sampled == 0 ? 0 : static_cast<double>(schedule.total()) / static_cast<double>(sampled),
         .exact_layers = exact_layers(schedule.samples),
         .summary = evaluation::summarise(of_cases[i], sampled, num_kv_heads)});
  }
  return rows;
}

std::string table(std::span<const FidelityRow> rows) {
  const std::string unit(kernels::name(rows.front().method.unit));  // of all
  int width = 8;
  for (const FidelityRow& row : rows) width = std::max(width, static_cast<int>(row.schedule.size()));
  const bench::Table table({{"estimator", -11},
                            {"schedule", -(width + 2)},
                            {unit.c_str(), 9, 1},
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
    text += table.line({kernels::name(row.method.estimator), row.schedule, row.samples, row.exact_layers,
                        summary.texts, summary.tokens, scientific(summary.divergence),
                        scientific(summary.divergence_error), 100 * summary.top1_agreement,
                        summary.rows_per_kv_head, summary.microseconds, summary.comparison_microseconds});
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

std::string weights_line(const evaluation::FidelitySummary& summary, const FidelityPlan& plan) {
  return fmt::format(
      "weights {} against those of {}, exact attention, {} texts, {} positions: divergence {:.3e}{}, top-1 "
      "{:.2f} %\n",
      plan.options.weights, plan.options.dtype, summary.texts, summary.positions, summary.divergence,
      summary.divergence_error ? fmt::format(" (standard error {:.1e})", *summary.divergence_error) : "",
      100 * summary.top1_agreement);
}

std::string weights_json_line(const evaluation::FidelitySummary& summary, const FidelityPlan& plan) {
  nlohmann::ordered_json json = {
      {"what", "weights"},
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
  const std::optional<evaluation::FidelitySummary> of_weights = measure_weights(plan, engine);
  if (json) {
    if (of_weights) std::cout << weights_json_line(*of_weights, plan);
    for (const FidelityRow& row : rows) std::cout << json_line(row, plan);
  } else {
    std::cout << describe(plan) << (of_weights ? weights_line(*of_weights, plan) : "") << "\n" << table(rows);
  }
  if (out.empty()) return 0;
  list_plots(write_fidelity_plots(rows, out), png, std::cerr);
  return 0;
}

}  // namespace allot::app
