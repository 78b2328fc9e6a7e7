// allot ablate: one-hot ablation (S2ANTA paper, Appendix J): one sample in one layer, or for one KV head, at
// a time over a base schedule.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <optional>

#include "app/cli/version.h"
#include "app/commands/scoring_commands.h"
#include "app/report/ablation_figures.h"
#include "app/report/png.h"
#include "app/scoring/scoring.h"
#include "base/error.h"
#include "base/file.h"
#include "base/number_text.h"
#include "evaluation/ablation.h"

namespace allot::app {
namespace {

std::string table(const evaluation::Ablation& ablation, const std::optional<ShownSchedule>& beside) {
  const bool heads = ablation.kv_heads > 0;
  std::string text =
      fmt::format("base {}: {}\n\n", ablation.base.to_string(), evaluation::text(ablation.base_accuracy));
  const std::string unit(kernels::name(ablation.conditions.attention.unit));
  text += fmt::format("{:>5}{}  {:<24}  {:<28}  {:>8}{}\n", "layer", heads ? "  KV head" : "",
                      "accuracy (95% interval)", "drop (95% interval)", "p",
                      beside ? fmt::format("  {:>8}", unit) : "");
  for (const evaluation::LayerAblation& row : ablation.layers)
    text += fmt::format(
        "{:>5}{}  {:<24}  {:<28}  {:>8.2g}{}\n", row.layer, heads ? fmt::format("  {:>7}", row.kv_head) : "",
        evaluation::text(row.accuracy),
        points_with_range(row.drop, row.drop_interval.low, row.drop_interval.high), row.p_value,
        beside ? fmt::format("  {:>8}", layer_text(beside->samples[static_cast<size_t>(row.layer)])) : "");
  if (beside) text += fmt::format("\n{} are those of {}\n", unit, beside->label);
  return text;
}

// The schedules of one sample in each layer, or for each of its KV heads, in order.
std::vector<NamedSchedule> one_hots(const policy::Schedule& base, int32_t kv_heads) {
  std::vector<NamedSchedule> all;
  for (int layer = 0; layer < static_cast<int>(base.samples.size()); ++layer) {
    if (kv_heads == 0)
      all.push_back({.label = fmt::format("one sample in layer {}", layer),
                     .schedule = evaluation::one_hot(base, layer),
                     .file = std::nullopt});
    for (int head = 0; head < kv_heads; ++head)
      all.push_back({.label = fmt::format("one sample in layer {}, KV head {}", layer, head),
                     .schedule = evaluation::one_hot_head(base, layer, head, kv_heads),
                     .file = std::nullopt});
  }
  return all;
}

// What no engine would do is said before a model is loaded or workers are asked.
void check_heads(const ScoringPlan& plan) {
  if (plan.options.device != "cpu")
    throw UsageError(fmt::format(
        "--per-kv-head gives KV heads of a layer different budgets, which models on the CPU follow; --device is {}",
        plan.options.device));
  if (plan.conditions.attention.estimator == kernels::Estimator::kPooled)
    throw UsageError(
        "--per-kv-head ablates one KV head, and --estimator pooled chooses rows of all heads of a layer together; "
        "use joint");
}

ShownSchedule shown_schedule(const NamedSchedule& named) {
  if (!named.schedule)
    throw UsageError("--beside dense has no samples to show; give a schedule that samples");
  return {.label = named.label, .samples = named.schedule->samples};
}

// What the report would refuse is refused before anything is scored.
void check_belongs(const evaluation::Conditions& ablation, const ConditionsSource& run) {
  const auto differences = evaluation::differences_from_run(ablation, run.conditions);
  if (differences.empty()) return;
  throw Mismatch(
      fmt::format("the run of {} was measured under other conditions (here against the run): {}; leave out "
                  "the options that change them, or write the result elsewhere with --out FILE",
                  run.place, evaluation::describe(differences)));
}

}  // namespace

int ablate(std::span<const std::string> arguments, ModelHere* model) {
  ScoringOptions options;
  std::string base = "16";
  std::filesystem::path out;
  std::filesystem::path run;
  std::filesystem::path plots;
  std::string beside_argument;
  bool per_kv_head = false, json = false, png = false;
  OptionSet set(
      "ablate",
      "measure each layer's importance: give one layer, or one KV head, a single sample and the others the base schedule",
      "allot ablate --model assets/tiny-gsm --data assets/tiny-gsm/heldout.jsonl --base 16 --limit 256");
  declare_scoring_options(&set, &options);
  declare_answers(&set, &options);
  declare_lease_options(&set, &options);
  set.text(
      "base", &base, "S",
      "samples of the other layers: one number, uniform:N, exact:K+uniform:N, a,b,c,… (numbers or exact) "
      "or a schedule.json");
  set.path("out", &out, "also write the result to this file");
  set.path("run", &run, "also write the result as ablation.json of this run directory, for its report");
  set.flag(
      "per-kv-head", &per_kv_head,
      "give a single sample to the query heads of one KV head at a time, in place of a whole layer (--device cpu)");
  set.text("beside", &beside_argument, "SCHEDULE",
           fmt::format("show each layer's samples in this schedule beside what the layer loses: {}",
                       kScheduleForms)
               .c_str());
  set.path("plots", &plots,
           "folder for a plot of what each layer loses, as SVG, with the schedule of --beside below it");
  set.flag("png", &png, "draw the plot as a PNG file too (needs rsvg-convert of the package librsvg2-bin)");
  set.flag(
      "json", &json,
      "print the result as JSON: ablation.json and the differences from the schedule's or the run's conditions");
  ScoringPlan plan;
  std::optional<ShownSchedule> beside;
  set.resolve_with([&] {
    std::optional<ConditionsSource> source;
    if (!run.empty()) source = conditions_of_run(run);
    const bool one_number = base.find_first_not_of("0123456789") == std::string::npos;
    plan = plan_scoring(std::array{one_number ? "uniform:" + base : base}, source, &options, &set);
    const auto& base_schedule = plan.schedules.front().schedule;
    if (!base_schedule || sampled_layers(base_schedule->samples) == 0)
      throw UsageError("--base dense has no samples to ablate; give a number, a list or a schedule.json");
    if (source) check_belongs(plan.conditions, *source);
    if (per_kv_head) check_heads(plan);
    if (png && plots.empty()) throw UsageError("--png needs --plots DIR, the folder of the plot");
    if (!beside_argument.empty())
      beside = shown_schedule(parse_schedule_argument(beside_argument, plan.conditions.model, options.model));
  });
  if (set.parse(arguments) == OptionSet::Parsed::kDone) return 0;

  const policy::Schedule base_schedule = *plan.schedules.front().schedule;
  const int32_t kv_heads = per_kv_head ? plan.conditions.model.num_kv_heads : 0;
  std::ranges::move(one_hots(base_schedule, kv_heads), std::back_inserter(plan.schedules));

  const std::vector<Score> scores = score(plan, model).schedules;
  std::vector<std::vector<double>> layers;
  for (size_t i = 1; i < scores.size(); ++i) layers.push_back(scores[i].scores);
  evaluation::Ablation ablation =
      evaluation::make_ablation(plan.conditions, base_schedule, scores.front().scores, layers, kv_heads);
  ablation.tool_version = version();
  const std::string text = evaluation::format_ablation(ablation);
  if (!out.empty()) write_file_atomically(out, text);
  if (!run.empty()) write_file_atomically(run / "ablation.json", text);
  CommandWords again = scoring_again(plan, "ablate");
  again.add("base", base);
  again.flag("per-kv-head", per_kv_head);
  if (beside) again.add("beside", beside_argument);
  std::cout << (json ? with_differences(text, plan)
                     : describe(plan) + "\n" + table(ablation, beside) + "\nagain: " + again.line() + "\n");
  if (!plots.empty()) list_plots(std::array{write_ablation_plot(ablation, beside, plots)}, png, std::cerr);
  return 0;
}

}  // namespace allot::app
