// allot verify: tests whether one schedule is better than another, question by question; with --total,
// whether the schedules that follow from one run at several totals are.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <filesystem>
#include <iostream>

#include "app/cli/command.h"
#include "app/cli/version.h"
#include "app/run/run_directory.h"
#include "app/scoring/scoring.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "evaluation/frontier.h"
#include "wire/messages.pb.h"
#include "wire/spec.h"

namespace allot::app {
namespace {

constexpr double kSignificance = 0.05;

// "better", "worse" or "undecided".
std::string outcome(const evaluation::PairedTest& test) {
  if (test.p_value >= kSignificance) return "undecided";
  return test.difference > 0 ? "better" : "worse";
}

std::string sentence(const Score& first, const Score& second, const std::string& outcome) {
  const std::string& a = first.schedule.label;
  const std::string& b = second.schedule.label;
  if (outcome == "undecided")
    return fmt::format("undecided: {} and {} do not differ significantly on these {} questions", a, b,
                       first.answers.scores.size());
  return fmt::format("{}: {} scores {} than {}", outcome, a, outcome == "better" ? "higher" : "lower", b);
}

// What the report would refuse is refused before anything is scored.
void check_belongs(const ScoringPlan& plan, const ScheduleFile& file, const ConditionsSource& run) {
  const auto differences = evaluation::decisive_differences(plan.conditions, run.conditions);
  if (!differences.empty())
    throw Mismatch(
        fmt::format("the run of {} was verified under other conditions (here against the run): {}; leave out "
                    "the options that change them, or write the result elsewhere with --out FILE",
                    run.place, evaluation::describe(differences)));
  const std::string run_id = wire::read_spec(run.place).run_id();
  if (file.run_id != run_id)
    throw Mismatch(
        fmt::format("the schedule is of run '{}', {} of run '{}'; give the schedule of the run, or "
                    "write the result elsewhere with --out FILE",
                    file.run_id, run.place, run_id));
}

// Makes the plan, whose one schedule comes from `file`, one of dense attention and of the even and the solved
// schedule of each total; the points without scores.
std::vector<evaluation::FrontierPoint> plan_totals(const ScheduleFile& file, std::vector<int64_t> totals,
                                                   ScoringPlan* plan) {
  std::ranges::sort(totals);
  std::vector<evaluation::FrontierPoint> points;
  plan->schedules = {{.label = "dense", .schedule = std::nullopt, .file = std::nullopt}};
  for (const int64_t total : totals) {
    ScheduleFile solved = resolve_total(file, total);
    const NamedSchedule learned{
        .label = fmt::format("learned {}", total), .schedule = solved.schedule, .file = std::nullopt};
    NamedSchedule uniform = even_spread(learned);
    uniform.label = fmt::format("uniform {}", total);
    points.push_back({.total = total,
                      .resolved = solved.resolved_from.has_value(),
                      .uniform_schedule = *uniform.schedule,
                      .learned_schedule = *learned.schedule});
    plan->schedules.push_back(std::move(uniform));
    plan->schedules.push_back(learned);
  }
  return points;
}

std::string table(const evaluation::Frontier& frontier, std::string_view unit) {
  std::string text = fmt::format("dense: {}\n\n", evaluation::text(frontier.dense));
  text += fmt::format("{:>8}  {:<24}  {:<24}  {}\n", unit, "uniform (95% interval)", "learned",
                      "learned against uniform");
  for (const evaluation::FrontierPoint& point : frontier.points)
    text += fmt::format("{:>8}  {:<24}  {:<24}  {}{}\n", point.total, evaluation::text(point.uniform),
                        evaluation::text(point.learned), format_test(point.paired),
                        point.resolved ? "" : "; the total of the run");
  return text;
}

struct FrontierOptions {
  std::string totals;
  std::filesystem::path out;
  std::filesystem::path run;
};

int verify_totals(const ScoringPlan& plan, const ScheduleFile& file,
                  std::vector<evaluation::FrontierPoint> points, const FrontierOptions& options, bool json) {
  for (const evaluation::FrontierPoint& point : points)
    if (const std::string warning = resolved_text(resolve_total(file, point.total)); !warning.empty())
      std::cerr << point.total << ": " << warning << " before\n";
  const std::vector<Score> scores = score(plan).schedules;
  evaluation::Frontier frontier{.conditions = plan.conditions,
                                .tool_version = version(),
                                .run_id = file.run_id,
                                .dense = evaluation::accuracy_of(scores.front().answers.scores),
                                .points = {}};
  for (size_t i = 0; i < points.size(); ++i)
    frontier.points.push_back(evaluation::score_point(points[i], scores[2 * i + 1].answers.scores,
                                                      scores[2 * i + 2].answers.scores));
  const std::string text = evaluation::format_frontier(frontier);
  if (!options.out.empty()) write_file_atomically(options.out, text);
  if (!options.run.empty()) write_file_atomically(options.run / "frontier.json", text);
  std::cout << (json
                    ? text
                    : describe(plan) + "\n" + table(frontier, kernels::name(plan.conditions.attention.unit)));
  return 0;
}

}  // namespace

int run_verify(std::span<const std::string> arguments) {
  ScoringOptions options;
  std::string schedule;
  std::string against = "uniform";
  FrontierOptions frontier;
  bool json = false;
  OptionSet set("verify",
                "say whether one schedule scores higher than another: both answer the same questions "
                "with the same draws; with --total, at several totals",
                "allot verify --model assets/tiny-gsm --data assets/tiny-gsm/heldout.jsonl "
                "--schedule 33,8,7,3,4,2,3,4 --against uniform");
  declare_scoring_options(&set, &options);
  set.text("schedule", &schedule, "S", kScheduleForms);
  set.text(
      "against", &against, "S",
      "the schedule to compare with; uniform spreads the first schedule's total evenly over its layers that "
      "sample");
  set.text("total", &frontier.totals, "N,…",
           "verify what the schedule.json gives at these totals, each beside the uniform schedule, and dense "
           "attention");
  set.path("out", &frontier.out, "with --total: also write the result to this file");
  set.path("run", &frontier.run,
           "with --total: also write the result as frontier.json of this run directory, for its report; the "
           "schedule is the run's where none is given");
  set.flag("json", &json, "print the result as JSON");
  ScoringPlan plan;
  std::optional<ScheduleFile> file;
  std::vector<evaluation::FrontierPoint> points;
  set.resolve_with([&] {
    const bool several = set.given("total");
    if (!several && (set.given("out") || set.given("run")))
      throw UsageError("--out and --run keep what --total measures; add --total");
    if (several && set.given("against"))
      throw UsageError("--total compares with the uniform schedule of each total; leave out --against");
    if (schedule.empty() && !frontier.run.empty()) schedule = schedule_file(frontier.run).string();
    if (schedule.empty()) throw UsageError("--schedule is missing: " + std::string(kScheduleForms));
    std::vector<std::string> wanted = {schedule};
    if (against != "uniform") wanted.push_back(against);
    std::optional<ConditionsSource> source;
    if (!frontier.run.empty()) source = conditions_of_run(frontier.run);
    plan = plan_scoring(wanted, source, &options, &set);
    if (!several) {
      if (against == "uniform") plan.schedules.push_back(even_spread(plan.schedules.front()));
      return;
    }
    file = plan.schedules.front().file;
    if (!file)
      throw UsageError("--total solves what a schedule.json keeps of its run, --schedule " + schedule +
                       " is none; give the file");
    if (source) check_belongs(plan, *file, *source);
    try {
      points = plan_totals(*file, parse_totals(frontier.totals), &plan);
    } catch (const InvalidArgument& error) {
      throw UsageError("--total " + frontier.totals + ": " + error.what());
    }
  });
  if (set.parse(arguments) == OptionSet::Parsed::kDone) return 0;
  if (file) return verify_totals(plan, *file, std::move(points), frontier, json);

  const Scores done = score(plan);
  const std::vector<Score>& scores = done.schedules;
  const evaluation::PairedTest test =
      evaluation::compare_scores(scores[0].answers.scores, scores[1].answers.scores);
  if (json) {
    nlohmann::ordered_json result = plan_json(plan);
    result["schedule"] = score_json(scores[0]);
    result["against"] = score_json(scores[1]);
    result["paired"] = to_json(test, "first", "second");
    result["verdict"] = outcome(test);
    result["seconds"] = done.seconds;
    std::cout << result.dump(2) << '\n';
    return 0;
  }
  std::cout << describe(plan) << '\n';
  for (const Score& score : scores)
    std::cout << fmt::format("{}: {}\n", score.schedule.label,
                             text(evaluation::accuracy_of(score.answers.scores)));
  std::cout << format_test(test) << '\n' << sentence(scores[0], scores[1], outcome(test)) << '\n';
  return 0;
}

}  // namespace allot::app
