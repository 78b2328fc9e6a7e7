#include "app/scoring/calibration_plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "app/cli/version.h"
#include "app/files/schedule_argument.h"
#include "base/error.h"

namespace allot::app {

void declare_calibration_options(OptionSet* set, CalibrationPlanOptions* options) {
  evaluation::CalibrationOptions& search = options->search;
  options->texts.mode = "reply";
  declare_text_options(set, &options->texts);
  declare_estimator_options(set, &options->texts.attention, EstimatorChoice::kSampled);
  declare_score_options(set, &options->texts.attention);
  set->text(
      "total", &options->totals, "N,…",
      "samples of all layers together, or value rows with --unit rows; a schedule is learned for each number. auto looks for the least total within --margin");
  set->real("margin", &options->margin, 1e-6, 100, "NATS", "divergence that --total auto has to stay within");
  set->integer("floor", &search.floor, 0, 1'000'000, "N", "the least that a layer gets");
  set->integer("steps", &search.steps, 1, 100'000, "N", "batches of schedules that are measured for a total");
  set->integer("pairs", &search.pairs, 1, 10'000, "N", "pairs of schedules in a step");
  set->integer("texts-per-step", &search.texts_per_step, 1, 1'000'000, "N",
               "texts on which the schedules of a step are measured, at most");
  set->integer("check-texts", &search.check_texts, 1, 1'000'000, "N",
               "texts set aside to choose and measure the result, at most half of all");
  set->path("out", &options->out, "folder of the schedules and plots");
  set->path(
      "measurements", &options->measurements,
      "file that keeps every schedule that was measured with its divergence, for allot bench tuner --recorded");
  set->require("total");
}

CalibrationPlan plan_calibration(CalibrationPlanOptions* options) {
  const bool automatic = options->totals == "auto";
  if (automatic != options->margin.has_value())
    throw UsageError(automatic
                         ? "--total auto needs --margin NATS, the divergence to stay within"
                         : "--margin goes with --total auto, which looks for the least total within it");
  check_unit(options->texts.attention);
  CalibrationPlan plan{.texts = {},
                       .totals = automatic ? std::vector<int64_t>{} : parse_totals(options->totals),
                       .margin = options->margin,
                       .search = options->search,
                       .out = options->out,
                       .measurements = options->measurements};
  evaluation::Conditions& conditions = plan.texts.conditions;
  conditions.model = model::identify_model(options->texts.model, {.adapter = options->texts.adapter});
  plan.search.layers = conditions.model.layers;
  plan.search.most_samples = 1;
  for (const int64_t total : plan.totals) {
    const int64_t least = int64_t{plan.search.floor} * plan.search.layers;
    if (total < least)
      throw UsageError(
          fmt::format("--total {} is less than --floor {} in each of the {} layers; give at least {}", total,
                      plan.search.floor, plan.search.layers, least));
  }
  add_texts(&options->texts, &plan.texts);
  for (const FidelityItem& text : plan.texts.texts)
    plan.search.most_samples = std::max(plan.search.most_samples, static_cast<int32_t>(text.ids.size()));
  plan.search.seed = static_cast<uint64_t>(options->texts.seed);
  conditions.attention = options->texts.attention;
  kernels::keep_own_parameters(&conditions.attention);
  conditions.attention.prefill = prefill_of(options->texts);
  conditions.learned_on = conditions.measured_on;
  // Nothing is graded.
  conditions.measured_on.reset();
  return plan;
}

std::string describe(const CalibrationPlan& plan) {
  return fmt::format("estimator: {}; {} steps of {} schedules on {} texts\n",
                     kernels::describe(plan.texts.conditions.attention), plan.search.steps,
                     2 * plan.search.pairs, plan.search.texts_per_step) +
         describe(plan.texts);
}

ScheduleFile schedule_file(const CalibrationPlan& plan, const evaluation::Calibration& calibration) {
  const int64_t total = calibration.schedule.total();
  const kernels::AttentionMethod& attention = plan.texts.conditions.attention;
  return {.conditions = plan.texts.conditions,
          .schedule = calibration.schedule,
          .total = total,
          .floor = plan.search.floor,
          .evaluation = {},
          .calibration = CalibrationRecord{.mode = plan.texts.options.mode,
                                           .check = CalibrationCheck{.texts = calibration.texts,
                                                                     .positions = calibration.positions,
                                                                     .uniform = calibration.uniform,
                                                                     .learned = calibration.learned}},
          .run_id = fmt::format("calibrate-{}-{}{}-seed{}", kernels::name(attention.estimator),
                                attention.unit == kernels::BudgetUnit::kRows ? "rows-" : "", total,
                                plan.search.seed),
          .policy_version = plan.search.steps,
          .costs = calibration.costs,
          .tool_version = version()};
}

}  // namespace allot::app
