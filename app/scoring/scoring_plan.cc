#include "app/scoring/scoring_plan.h"

#include <fmt/format.h>

#include "app/cli/version.h"
#include "base/error.h"
#include "base/json.h"
#include "evaluation/detectable.h"
#include "evaluation/grader_process.h"

namespace allot::app {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

void declare_scoring_options(OptionSet* set, ScoringOptions* options) {
  constexpr int64_t kMany = 1'000'000'000;
  declare_reply_options(set, options, PromptStyles::kOfTask);
  declare_data_options(set, &options->data, &options->fields, "questions to ask");
  set->integer("limit", &options->limit, 0, kMany, "N", "score the first N questions; 0 for all");
  declare_grader_option(set, &options->grading, "program that grades replies");
  set->path("details", &options->details, "write every reply and its grade to this JSONL file");
  set->require("data");
}

void declare_evaluation_run(OptionSet* set, ScoringOptions* options) {
  constexpr int32_t kMostRepeats = 1000;
  set->integer("repeats", &options->repeats, 1, kMostRepeats, "N",
               "ask each question N times, each time with other draws; its score is their mean");
  set->path("run", &options->run,
            "keep every answer in this directory as it comes; the same command goes on where it was stopped, "
            "and asks what --limit, --repeats and --schedule have added");
  set->flag("regrade", &options->regrade, "grade the answers in --run again by the task as it is now, first");
  set->path("lm-eval-out", &options->lm_eval,
            "also write results and samples as lm-evaluation-harness does, a folder for each schedule");
}

void declare_answers(OptionSet* set, ScoringOptions* options) {
  set->path("answers", &options->run,
            "keep every answer in this directory as it comes; the same command goes on where it was stopped");
}

void declare_lease_options(OptionSet* set, ScoringOptions* options) {
  LeaseOptions& leases = options->leases;
  declare_listen_options(
      set, &leases.listen,
      "let workers (allot worker --connect) answer: the address to listen on for them; port * "
      "lets the system choose one, which the file 'endpoint' of the answers' directory names. "
      "--device is then the kind of their devices, and no model is loaded here");
  set->integer("lease-seconds", &leases.lease_seconds, 1, 1'000'000, "S",
               "with --bind: ask questions again when their worker has been silent this long");
  set->integer("max-attempts", &leases.max_attempts, 1, 1'000'000, "N",
               "with --bind: attempts at questions that are leased together before they are given up");
}

NamedSchedule even_spread(const NamedSchedule& schedule) {
  if (!schedule.schedule || sampled_layers(schedule.schedule->samples) == 0)
    throw UsageError("dense attention has no total to spread evenly; name the schedule to compare it with");
  return {.label = "uniform", .schedule = policy::even_schedule(*schedule.schedule), .file = std::nullopt};
}

ScoringPlan plan_scoring(std::span<const std::string> schedules, const std::optional<ConditionsSource>& run,
                         ScoringOptions* options, OptionSet* set) {
  if (options->regrade && options->run.empty())
    throw UsageError("--regrade grades the answers of an evaluation again; name its directory with --run");
  if (!options->run.empty() && !options->executed_out.empty())
    throw UsageError(
        "--executed-out counts what this process executes, and --run may go on with what others "
        "have answered; leave one out");
  // What a dry run prints, given as a config, has their defaults.
  for (const char* of_leases :
       {"key", "allow", "insecure", "max-connections", "max-rate", "lease-seconds", "max-attempts"})
    if (options->leases.listen.bind.empty() && set->has(of_leases) && set->changed(of_leases))
      throw UsageError(fmt::format("--{} goes with --bind, the address at which workers answer", of_leases));
  if (!options->leases.listen.bind.empty() && options->run.empty())
    throw UsageError(fmt::format("--bind {}: the answers of workers are kept; name their directory with {}",
                                 options->leases.listen.bind, set->has("answers") ? "--answers" : "--run"));
  // A lease has one schedule.
  if (!options->leases.listen.bind.empty()) options->bands = Bands::kRefused;
  ScoringPlan plan;
  static_cast<ReplyPlan&>(plan) = plan_replies(schedules, run, options, set);
  if (const std::string grader = options->grading.grader(); !grader.empty()) options->grader = grader;
  // Workers grade what they answer.
  if (options->leases.listen.bind.empty() || options->regrade)
    evaluation::require_grader(*plan.task, options->grader);
  plan.dataset = plan.task->load(options->data, options->fields);
  const int64_t questions = std::ssize(plan.dataset.questions);
  if (options->limit > questions)
    throw UsageError(fmt::format("--limit {} is more than the {} questions of {}", options->limit, questions,
                                 options->data.string()));
  plan.conditions.measured_on = {.sha256 = plan.dataset.sha256,
                                 .questions = options->limit > 0 ? options->limit : questions,
                                 .fields = options->fields};
  plan.options = *options;
  return plan;
}

CommandWords scoring_again(const ScoringPlan& plan, std::string_view command) {
  const ScoringOptions& options = plan.options;
  std::vector<evaluation::Conditions> sources;
  for (const ConditionsSource& source : plan.sources) sources.push_back(source.conditions);
  CommandWords words(command);
  words.add(plan.conditions,
            {.model = options.model.string(),
             .adapter = options.adapter.value_or("").string(),
             .data = options.data.string(),
             .task_file = options.task,
             .grader = options.grader},
            sources);
  words.add("limit", plan.questions());
  if (options.repeats > 1) words.add("repeats", options.repeats);
  // Rounding is that of the device.
  words.add("device", options.device);
  return words;
}

Json plan_json(const ScoringPlan& plan) {
  Json differences = Json::array();
  for (const ConditionsSource& source : plan.sources) {
    for (const evaluation::Difference& difference :
         evaluation::decisive_differences(source.conditions, plan.conditions)) {
      differences.push_back({{"field", difference.field},
                             {"schedule", Json::parse(difference.first)},
                             {"here", Json::parse(difference.second)},
                             {"file", source.place}});
    }
  }
  return {{"tool_version", version()},
          {"conditions", evaluation::to_json(plan.conditions)},
          {"differences", std::move(differences)},
          {"data", plan.options.data.string()},
          {"device", plan.options.device}};
}

std::string detectable_line(const ScoringPlan& plan) {
  if (plan.schedules.size() < 2) return "";
  const auto quarter = evaluation::detectable_difference(plan.questions(), 0.25);
  const auto tenth = evaluation::detectable_difference(plan.questions(), 0.1);
  if (!quarter)
    return fmt::format(
        "{} questions are too few to find any difference between two schedules unless more than one in four tells "
        "them apart\n",
        plan.questions());
  return fmt::format(
      "{} questions find a difference of {:.1f} points in four of five cases where one in four tells two schedules "
      "apart, and {} where one in ten does\n",
      plan.questions(), 100 * *quarter, tenth ? fmt::format("{:.1f}", 100 * *tenth) : "none");
}

std::string with_differences(const std::string& file, const ScoringPlan& plan) {
  Json printed = Json::parse(file);
  printed["differences"] = plan_json(plan)["differences"];
  return printed.dump(2) + "\n";
}

std::string describe(const ScoringPlan& plan) {
  std::string text =
      fmt::format("conditions: {}; {} questions of {}\n", evaluation::describe(plan.conditions),
                  plan.questions(), plan.options.data.string()) +
      unit_line(plan.conditions.attention, plan.conditions.model);
  for (const ConditionsSource& source : plan.sources) {
    const auto differences = evaluation::decisive_differences(source.conditions, plan.conditions);
    if (differences.empty()) {
      text += fmt::format("  as in {}{}\n", source.place,
                          source.conditions.unknown.empty() ? "" : ", as far as it says");
    }
    for (const evaluation::Difference& difference : differences) {
      text += fmt::format("  {} is {} here and {} in {}\n", difference.field, difference.second,
                          difference.first, source.place);
    }
  }
  return text;
}

}  // namespace allot::app
