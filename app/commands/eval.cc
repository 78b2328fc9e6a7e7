// allot eval: how many questions of a task, or of each of several, a model answers right under dense
// attention or under schedules.
#include <fmt/format.h>

#include <array>
#include <iostream>
#include <string>
#include <vector>

#include "app/commands/eval_results.h"
#include "app/commands/scoring_commands.h"
#include "app/scoring/scoring.h"
#include "app/scoring/suite.h"
#include "base/error.h"
#include "base/json.h"

namespace allot::app {
namespace {

struct EvalOptions : ScoringOptions {
  EvalOptions() { bands = Bands::kFollowed; }

  std::vector<std::string> schedules;
  std::filesystem::path suite;
  bool json = false;
};

void declare_eval(OptionSet* set, EvalOptions* options) {
  declare_scoring_options(set, options);
  set->texts("schedule", &options->schedules, "SCHEDULE",
             fmt::format("{}; may be given several times; default config where there is one, else dense",
                         kScheduleForms)
                 .c_str());
  set->suggest("schedule", {"dense", "config"});
  set->path(
      "suite", &options->suite,
      "ask several tasks: a file with a section for each, of its name and the options that are its own, such as "
      "task, data and limit; --run, --details and --lm-eval-out then name directories with one of each task's");
  set->require_unless("suite", "data");
  declare_evaluation_run(set, options);
  declare_lease_options(set, options);
  declare_executed_out(set, options);
  set->flag("json", &options->json, "print the result as JSON");
}

OptionSet eval_options() {
  return {"eval",
          "score a model under dense attention or under schedules, on the same questions with the same draws",
          "allot eval --model assets/tiny-gsm --data assets/tiny-gsm/heldout.jsonl "
          "--schedule dense --schedule uniform:8"};
}

ScoringPlan plan_eval(EvalOptions* options, OptionSet* set) {
  if (options->schedules.empty()) options->schedules = {usual_schedule(options->model)};
  return plan_scoring(options->schedules, std::nullopt, options, set);
}

// The plan of a task of the suite, by the command that would ask it alone; its files lie where those of the
// suite are to be, under its name.
ScoringPlan plan_task(std::span<const std::string> arguments, const SuiteTask& task) try {
  EvalOptions options;
  OptionSet set = eval_options();
  declare_eval(&set, &options);
  ScoringPlan plan;
  set.resolve_with([&] { plan = plan_eval(&options, &set); });
  if (set.parse(words_of_task(arguments, task)) == OptionSet::Parsed::kDone)
    throw UsageError("a suite's tasks have no options that end the command");
  plan.name = task.name;
  ScoringOptions& resolved = plan.options;
  if (!resolved.run.empty()) resolved.run /= task.name;
  if (!resolved.lm_eval.empty()) resolved.lm_eval /= task.name;
  if (!resolved.details.empty()) resolved.details /= task.name + ".jsonl";
  return plan;
} catch (const UsageError& error) {
  throw UsageError(fmt::format("{}[{}]: {}", task.where, task.name, error.what()));
}

std::vector<ScoringPlan> plan_suite(std::span<const std::string> arguments, const EvalOptions& options) {
  if (!options.executed_out.empty())
    throw UsageError("--executed-out keeps what one schedule executes on one task; leave out --suite");
  if (std::filesystem::exists(options.run / "evaluation.json"))
    throw Mismatch(fmt::format("{} holds the answers of a single task; name another directory with --run",
                               options.run.string()));
  std::vector<ScoringPlan> plans;
  for (const SuiteTask& task : read_suite(options.suite)) plans.push_back(plan_task(arguments, task));
  return plans;
}

// Where answers are kept and how many of them others have given; empty where they are not kept.
std::string run_line(const Evaluated& task) {
  const ScoringPlan& plan = *task.plan;
  if (plan.options.run.empty()) return "";
  return fmt::format("  {} of {} answers were in {} before\n", task.scores.answered_before,
                     int64_t{plan.questions()} * plan.options.repeats * std::ssize(plan.schedules),
                     plan.options.run.string());
}

std::string for_people(std::span<const Evaluated> tasks) {
  std::string text;
  for (const Evaluated& task : tasks) {
    if (!task.plan->name.empty()) text += fmt::format("{}: ", task.plan->name);
    text += describe(*task.plan) + run_line(task);
  }
  text += "\n" + eval_table(tasks) + "\n";
  for (const Evaluated& task : tasks)
    text += fmt::format("again{}: {}\n", task.plan->name.empty() ? "" : ", " + task.plan->name, task.again);
  return text;
}

std::string again_of(const ScoringPlan& plan, std::span<const std::string> schedules) {
  CommandWords words = scoring_again(plan, "eval");
  for (const std::string& schedule : schedules) words.add("schedule", schedule);
  return words.line();
}

}  // namespace

int eval(std::span<const std::string> arguments, ModelHere* model) {
  EvalOptions options;
  OptionSet set = eval_options();
  declare_eval(&set, &options);
  std::vector<ScoringPlan> plans;
  set.resolve_with([&] {
    if (options.suite.empty())
      plans.push_back(plan_eval(&options, &set));
    else
      plans = plan_suite(arguments, options);
  });
  if (set.parse(arguments) == OptionSet::Parsed::kDone) return 0;

  for (const ScoringPlan& plan : plans) {
    const std::string line = detectable_line(plan);
    std::cerr << (plan.name.empty() || line.empty() ? "" : plan.name + ": ") << line;
  }
  std::vector<Scores> scores;
  if (options.suite.empty())
    scores.push_back(score(plans.front(), model));
  else
    scores = score_suite(plans, options.run, model);
  std::vector<Evaluated> tasks;
  for (size_t i = 0; i < plans.size(); ++i) {
    if (options.schedules.empty()) options.schedules = {usual_schedule(options.model)};
    tasks.push_back(
        {.plan = &plans[i], .scores = std::move(scores[i]), .again = again_of(plans[i], options.schedules)});
  }
  if (options.json)
    std::cout << (options.suite.empty() ? eval_json(tasks.front()) : eval_json(tasks, options.suite.string()))
                     .dump(2)
              << "\n";
  else
    std::cout << for_people(tasks);
  return 0;
}

}  // namespace allot::app
