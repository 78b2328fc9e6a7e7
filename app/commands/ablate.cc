// allot ablate: one-hot ablation (S2ANTA paper, Appendix J): one sample in one layer at a time over a base
// schedule.
#include <spdlog/fmt/fmt.h>

#include <array>
#include <filesystem>
#include <iostream>

#include "app/cli/version.h"
#include "app/commands/scoring_commands.h"
#include "app/scoring/scoring.h"
#include "base/error.h"
#include "base/file.h"
#include "base/number_text.h"
#include "evaluation/ablation.h"

namespace allot::app {
namespace {

std::string table(const evaluation::Ablation& ablation) {
  std::string text =
      fmt::format("base {}: {}\n\n", ablation.base.to_string(), evaluation::text(ablation.base_accuracy));
  text += fmt::format("{:>5}  {:<24}  {:<28}  {:>8}\n", "layer", "accuracy (95% interval)",
                      "drop (95% interval)", "p");
  for (const evaluation::LayerAblation& layer : ablation.layers)
    text += fmt::format("{:>5}  {:<24}  {:<28}  {:>8.2g}\n", layer.layer, evaluation::text(layer.accuracy),
                        points_with_range(layer.drop, layer.drop_interval.low, layer.drop_interval.high),
                        layer.p_value);
  return text;
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
  bool json = false;
  OptionSet set(
      "ablate",
      "measure each layer's importance: give one layer a single sample and the others the base schedule",
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
      "json", &json,
      "print the result as JSON: ablation.json and the differences from the schedule's or the run's conditions");
  ScoringPlan plan;
  set.resolve_with([&] {
    std::optional<ConditionsSource> source;
    if (!run.empty()) source = conditions_of_run(run);
    const bool one_number = base.find_first_not_of("0123456789") == std::string::npos;
    plan = plan_scoring(std::array{one_number ? "uniform:" + base : base}, source, &options, &set);
    const auto& base_schedule = plan.schedules.front().schedule;
    if (!base_schedule || sampled_layers(base_schedule->samples) == 0)
      throw UsageError("--base dense has no samples to ablate; give a number, a list or a schedule.json");
    if (source) check_belongs(plan.conditions, *source);
  });
  if (set.parse(arguments) == OptionSet::Parsed::kDone) return 0;

  const policy::Schedule base_schedule = *plan.schedules.front().schedule;
  for (int layer = 0; layer < plan.conditions.model.layers; ++layer)
    plan.schedules.push_back({.label = fmt::format("one sample in layer {}", layer),
                              .schedule = evaluation::one_hot(base_schedule, layer),
                              .file = std::nullopt});

  const std::vector<Score> scores = score(plan, model).schedules;
  std::vector<std::vector<double>> layers;
  for (size_t i = 1; i < scores.size(); ++i) layers.push_back(scores[i].scores);
  evaluation::Ablation ablation =
      evaluation::make_ablation(plan.conditions, base_schedule, scores.front().scores, layers);
  ablation.tool_version = version();
  const std::string text = evaluation::format_ablation(ablation);
  if (!out.empty()) write_file_atomically(out, text);
  if (!run.empty()) write_file_atomically(run / "ablation.json", text);
  CommandWords again = scoring_again(plan, "ablate");
  again.add("base", base);
  std::cout << (json ? with_differences(text, plan)
                     : describe(plan) + "\n" + table(ablation) + "\nagain: " + again.line() + "\n");
  return 0;
}

}  // namespace allot::app
