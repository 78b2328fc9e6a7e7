#include "app/scoring/calibration_plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "app/cli/as_usage.h"
#include "app/cli/version.h"
#include "app/files/schedule_argument.h"
#include "app/run/policy_options.h"
#include "base/error.h"
#include "evaluation/overlap.h"

namespace allot::app {
namespace {

void check_bounds(const CalibrationPlan& plan) {
  const evaluation::CalibrationOptions& search = plan.search;
  as_usage([&] { return policy::totals_within(search.bounds, search.layers, search.floor); });
  const int layers = evaluation::layers_that_sample(search);
  for (const int64_t total : plan.totals) {
    const int64_t least = int64_t{search.floor} * layers;
    if (total < least)
      throw UsageError(fmt::format(
          "--total {} is less than --floor {} in each of the {} layers that sample; give at least {}", total,
          search.floor, layers, least));
    as_usage([&] { return policy::limits_of(search.bounds, search.layers, total, search.floor); });
  }
  if (layers < search.layers && !plan.measurements.empty())
    throw UsageError("--measurements keeps schedules in which every layer samples, --bounds " +
                     search.bounds.to_string() + " has exact ones; leave one of the two out");
}

void check_margins(const CalibrationPlanOptions& options) {
  const bool automatic = options.totals == "auto";
  const bool nats = options.margin.has_value(), points = options.accuracy_margin.has_value();
  if (automatic && nats == points)
    throw UsageError(
        "--total auto needs one of --margin NATS, a divergence to stay within, and --accuracy-margin POINTS, the "
        "accuracy that may be lost");
  if (!automatic && (nats || points))
    throw UsageError(fmt::format("--{} goes with --total auto, which looks for the least total within it",
                                 nats ? "margin" : "accuracy-margin"));
  if (points && options.heldout.empty())
    throw UsageError("--accuracy-margin needs --heldout FILE, the questions by which accuracy is told");
  const std::pair<const char*, bool> of_answers[] = {
      {"heldout", !options.heldout.empty()},
      {"heldout-questions", options.heldout_questions.has_value()},
      {"max-new-tokens", options.max_new_tokens.has_value()},
      {"grader", !options.grading.command.empty()},
      {"allow-code-execution", options.grading.allow_code_execution}};
  for (const auto& [option, is_given] : of_answers)
    if (is_given && !points)
      throw UsageError(
          fmt::format("--{} goes with --accuracy-margin: divergences alone need no answers", option));
}

// The texts have been read: their options are resolved.
AccuracyPlan plan_accuracy(const CalibrationPlanOptions& options, const kernels::AttentionMethod& attention,
                           OptionSet* set) {
  const FidelityPlanOptions& texts = options.texts;
  ScoringOptions scoring;
  scoring.model = texts.model;
  scoring.adapter = texts.adapter;
  scoring.task = texts.task;
  scoring.prompt_style = texts.prompt_style;
  scoring.attention = attention;
  scoring.generation.dtype = texts.dtype;
  scoring.generation.weights = texts.weights;
  scoring.generation.keys = texts.keys;
  scoring.generation.temperature = 0;  // greedy: one source of chance less between two schedules
  scoring.generation.max_new_tokens = options.max_new_tokens;
  scoring.seed = texts.seed;
  scoring.device = texts.device;
  scoring.threads = texts.threads;
  scoring.data = options.heldout;
  scoring.fields = texts.fields;
  scoring.grader = options.grading.grader();
  const std::vector<std::string> dense = {"dense"};
  AccuracyPlan plan{.margin = *options.accuracy_margin / 100,
                    .scoring = plan_scoring(dense, std::nullopt, &scoring, set)};
  if (!texts.data.empty())
    evaluation::check_held_out(*plan.scoring.task, plan.scoring.task->load(texts.data, texts.fields),
                               plan.scoring.dataset);
  const int64_t there = plan.scoring.questions(), questions = options.heldout_questions.value_or(there);
  if (questions > there)
    throw UsageError(fmt::format("--heldout-questions {} is more than the {} questions of {}", questions,
                                 there, options.heldout.string()));
  plan.scoring.conditions.measured_on->questions = questions;
  if (const double least = evaluation::least_margin(questions); least > plan.margin)
    throw UsageError(fmt::format(
        "--accuracy-margin {} cannot be told with {} question{}: where every one of them is answered as with "
        "dense attention, up to {:.1f} points may be lost all the same (95% interval); give {} questions or more "
        "(--heldout, --heldout-questions), or a margin of at least {:.1f}",
        *options.accuracy_margin, questions, questions == 1 ? "" : "s", 100 * least,
        evaluation::least_questions(plan.margin), std::ceil(1000 * least) / 10));
  return plan;
}

}  // namespace

void declare_calibration_options(OptionSet* set, CalibrationPlanOptions* options) {
  evaluation::CalibrationOptions& search = options->search;
  options->texts.mode = "reply";
  declare_text_options(set, &options->texts);
  declare_estimator_options(set, &options->texts.attention, EstimatorChoice::kSampled);
  declare_score_options(set, &options->texts.attention);
  set->text(
      "total", &options->totals, "N,…",
      "samples of all layers together, or value rows with --unit rows; a schedule is learned for each number. auto looks for the least total within --margin or --accuracy-margin");
  set->real("margin", &options->margin, 1e-6, 100, "NATS", "divergence that --total auto has to stay within");
  set->real(
      "accuracy-margin", &options->accuracy_margin, 0.01, 100, "POINTS",
      "accuracy that --total auto may lose against dense attention: the upper end of the loss's 95% interval on "
      "the questions of --heldout, answered greedily, has to be at most this");
  set->path(
      "heldout", &options->heldout,
      "questions that verify the totals of --accuracy-margin, in the form of --data and none of its own");
  set->integer("heldout-questions", &options->heldout_questions, 1, 1'000'000'000, "N",
               "verify on the first N held-out questions; on all without it");
  set->integer("max-new-tokens", &options->max_new_tokens, 1, evaluation::kMaxNewTokens, "N",
               "longest reply to a held-out question; as the task says without it");
  declare_grader_option(set, &options->grading, "program that grades replies");
  set->integer("floor", &search.floor, 0, 1'000'000, "N", "the least that a layer gets");
  declare_bounds_option(set, &options->bounds);
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

CalibrationPlan plan_calibration(CalibrationPlanOptions* options, OptionSet* set) {
  check_margins(*options);
  check_unit(options->texts.attention);
  CalibrationPlan plan{
      .texts = {},
      .totals = options->totals == "auto" ? std::vector<int64_t>{} : parse_totals(options->totals),
      .margin = options->margin,
      .accuracy = {},
      .search = options->search,
      .out = options->out,
      .measurements = options->measurements};
  evaluation::Conditions& conditions = plan.texts.conditions;
  conditions.model = model::identify_model(options->texts.model, {.adapter = options->texts.adapter});
  plan.search.layers = conditions.model.layers;
  plan.search.most_samples = 1;
  plan.search.bounds = as_usage([&] { return policy::parse_bounds(options->bounds); });
  check_bounds(plan);
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
  if (options->accuracy_margin) {
    plan.accuracy = plan_accuracy(*options, conditions.attention, set);
    options->max_new_tokens = plan.accuracy->scoring.conditions.generation.max_new_tokens;
  }
  return plan;
}

std::string describe(const CalibrationPlan& plan) {
  return fmt::format("estimator: {}; {} steps of {} schedules on {} texts\n",
                     kernels::describe(plan.texts.conditions.attention), plan.search.steps,
                     2 * plan.search.pairs, plan.search.texts_per_step) +
         (plan.search.bounds.empty() ? "" : fmt::format("bounds: {}\n", plan.search.bounds.to_string())) +
         describe(plan.texts) +
         (plan.accuracy ? "verified by answers under\n" + describe(plan.accuracy->scoring) : "");
}

ScheduleFile schedule_file(const CalibrationPlan& plan, const evaluation::Calibration& calibration,
                           const std::optional<evaluation::AccuracyLoss>& loss) {
  const int64_t total = calibration.schedule.total();
  const kernels::AttentionMethod& attention = plan.texts.conditions.attention;
  evaluation::Conditions conditions = plan.texts.conditions;
  EvaluationRecord evaluation;
  if (loss) {
    const evaluation::Conditions& of_answers = plan.accuracy->scoring.conditions;
    conditions.task = of_answers.task;
    conditions.generation = of_answers.generation;
    conditions.measured_on = of_answers.measured_on;
    conditions.unknown = of_answers.unknown;
    evaluation.learned = loss->learned;
    evaluation.dense = loss->dense;
  }
  return {.conditions = std::move(conditions),
          .schedule = calibration.schedule,
          .total = total,
          .floor = plan.search.floor,
          .evaluation = std::move(evaluation),
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
