// allot verify: tests whether one schedule is better than another, question by question; with --total,
// whether the schedules that follow from one run at several totals are.
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iostream>

#include "app/cli/version.h"
#include "app/commands/scoring_commands.h"
#include "app/run/run_directory.h"
#include "app/scoring/scoring.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "evaluation/detectable.h"
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

std::string sentence(const Score& first, const Score& second, const evaluation::PairedTest& test) {
  const std::string& a = first.schedule.label;
  const std::string& b = second.schedule.label;
  if (const std::string found = outcome(test); found != "undecided") {
    const double sign = test.difference > 0 ? 1 : -1;
    const double ends[] = {100 * sign * test.interval.low, 100 * sign * test.interval.high};
    return fmt::format("{}: {} scores {:.1f} points {} than {}, 95 % interval {:.1f} to {:.1f}", found, a,
                       100 * std::abs(test.difference), sign > 0 ? "higher" : "lower", b,
                       std::min(ends[0], ends[1]), std::max(ends[0], ends[1]));
  }
  const int64_t tell = test.pairs.only_first + test.pairs.only_second;
  const auto detectable = evaluation::detectable_difference(
      test.questions,
      test.questions == 0 ? 0 : static_cast<double>(tell) / static_cast<double>(test.questions));
  return fmt::format(
      "undecided: no evidence that {} scores higher or lower than {}; {} of {} questions tell them apart, {}",
      a, b, tell, test.questions,
      detectable ? fmt::format("and so many find a difference of {:.1f} points in four of five cases",
                               100 * *detectable)
                 : "too few to find a difference of any size");
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
  for (const evaluation::EvenPoint& point : frontier.even)
    text += fmt::format("{:>8}  {}\n", point.total, evaluation::text(point.accuracy));
  if (const auto equal = evaluation::equal_even(frontier))
    text += "\n" + evaluation::text(*equal, unit) + "\n";
  return text;
}

constexpr int64_t kMostEvenTimes =
    32;  // of the run's total, in the search for the even one that is as accurate

struct FrontierOptions {
  std::string totals;
  bool equal_even = false;
  std::filesystem::path out;
  std::filesystem::path run;
  bool json = false;
};

void add_even(const Score& score, evaluation::Frontier* frontier) {
  const policy::Schedule& schedule = *score.schedule.schedule;
  frontier->even.push_back({schedule.total(), schedule, evaluation::accuracy_of(score.scores)});
  std::ranges::sort(frontier->even, {}, &evaluation::EvenPoint::total);
}

// The replies of questions that are right under dense attention, scored first, and not under the run's
// schedule.
void keep_lost(std::span<const Score> scores, evaluation::Frontier* frontier) {
  const auto own = std::ranges::find(frontier->points, false, &evaluation::FrontierPoint::resolved);
  if (own == frontier->points.end()) return;
  const Score& dense = scores.front();
  const Score& learned = scores[static_cast<size_t>(2 * (own - frontier->points.begin()) + 2)];
  for (uint32_t question = 0; question < dense.scores.size(); ++question) {
    if (frontier->lost.size() == evaluation::Frontier::kMostLost) return;
    if (dense.scores[question] < 1 || learned.scores[question] >= 1) continue;
    frontier->lost.push_back({question, dense.replies[question], learned.replies[question]});
  }
}

int verify_totals(const ScoringPlan& plan, const ScheduleFile& file,
                  std::vector<evaluation::FrontierPoint> points, const FrontierOptions& options,
                  const std::string& again, ModelHere* model) {
  for (const evaluation::FrontierPoint& point : points)
    if (const std::string warning = resolved_text(resolve_total(file, point.total)); !warning.empty())
      std::cerr << point.total << ": " << warning << " before\n";
  evaluation::Frontier frontier{.conditions = plan.conditions,
                                .tool_version = version(),
                                .run_id = file.run_id,
                                .dense = {},
                                .points = std::move(points)};
  const auto score_points = [&](std::span<const Score> scores) {
    frontier.dense = evaluation::accuracy_of(scores.front().scores);
    for (size_t i = 0; i < frontier.points.size(); ++i)
      frontier.points[i] =
          evaluation::score_point(frontier.points[i], scores[2 * i + 1].scores, scores[2 * i + 2].scores);
  };
  const size_t planned = plan.schedules.size();
  // A search step at a time, so that the model is loaded once.
  const auto next_even = [&](std::span<const Score> scores) -> std::vector<NamedSchedule> {
    if (scores.size() == planned)
      score_points(scores);
    else
      add_even(scores.back(), &frontier);
    const auto total = evaluation::next_even_total(frontier, kMostEvenTimes * file.schedule.total());
    if (!total) return {};
    return {{.label = fmt::format("uniform {}", *total),
             .schedule = policy::even_schedule(file.schedule, *total),
             .file = std::nullopt}};
  };
  const std::vector<Score> scores =
      score(plan, model, options.equal_even ? NextSchedules(next_even) : NextSchedules()).schedules;
  score_points(std::span(scores).first(planned));
  keep_lost(scores, &frontier);
  const std::string text = evaluation::format_frontier(frontier);
  if (!options.out.empty()) write_file_atomically(options.out, text);
  if (!options.run.empty()) write_file_atomically(options.run / "frontier.json", text);
  std::cout << (options.json
                    ? with_differences(text, plan)
                    : describe(plan) + "\n" + table(frontier, kernels::name(plan.conditions.attention.unit)) +
                          "\nagain: " + again + "\n");
  return 0;
}

}  // namespace

int verify(std::span<const std::string> arguments, ModelHere* model) {
  ScoringOptions options;
  std::string schedule;
  std::string against = "uniform";
  FrontierOptions frontier;
  OptionSet set(
      "verify",
      "say whether one schedule scores higher than another: both answer the same questions "
      "with the same draws; with --total, at several totals; with --executed, whether an engine executed one",
      "allot verify --model assets/tiny-gsm --data assets/tiny-gsm/heldout.jsonl "
      "--schedule 33,8,7,3,4,2,3,4 --against uniform");
  declare_scoring_options(&set, &options);
  declare_answers(&set, &options);
  declare_lease_options(&set, &options);
  set.text("schedule", &schedule, "SCHEDULE", kScheduleForms);
  set.suggest("schedule", {"dense", "config"});
  set.text(
      "against", &against, "SCHEDULE",
      "the schedule to compare with; uniform spreads the first schedule's total evenly over its layers that "
      "sample");
  set.suggest("against", {"uniform", "dense", "config"});
  set.text("total", &frontier.totals, "N,…",
           "verify what the schedule.json gives at these totals, each beside the uniform schedule, and dense "
           "attention");
  set.flag(
      "equal-even", &frontier.equal_even,
      "find the even total that is as accurate as the schedule of the schedule.json, by measuring further "
      "even totals; without --total at its own total alone");
  set.path("out", &frontier.out, "with --total or --equal-even: also write the result to this file");
  set.path(
      "run", &frontier.run,
      "with --total or --equal-even: also write the result as frontier.json of this run directory, for its report; the "
      "schedule is the run's where none is given");
  set.flag("json", &frontier.json, "print the result as JSON");
  std::filesystem::path executed;
  set.path(
      "executed", &executed,
      "compare what an engine counted in this file with --schedule or --run, without a model; allot verify "
      "--executed --help has the options of that");
  ScoringPlan plan;
  std::optional<ScheduleFile> file;
  std::vector<evaluation::FrontierPoint> points;
  set.resolve_with([&] {
    if (set.given("executed"))
      throw UsageError("--executed " + executed.string() +
                       " is for allot, not for this executable: allot verify …");
    const bool several = set.given("total") || frontier.equal_even;
    if (!several && (set.given("out") || set.given("run")))
      throw UsageError("--out and --run keep what --total and --equal-even measure; add one of them");
    if (several && set.given("against"))
      throw UsageError(
          "--total and --equal-even compare with the uniform schedule of each total; leave out --against");
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
      throw UsageError("--total and --equal-even solve what a schedule.json keeps of its run, --schedule " +
                       schedule + " is none; give the file");
    if (source) check_belongs(plan, *file, *source);
    try {
      std::vector<int64_t> totals;
      if (!frontier.totals.empty()) totals = parse_totals(frontier.totals);
      const int64_t own = file->schedule.total();
      if (frontier.equal_even && std::ranges::find(totals, own) == totals.end()) totals.push_back(own);
      points = plan_totals(*file, std::move(totals), &plan);
      plan.keep_replies = true;
    } catch (const InvalidArgument& error) {
      throw UsageError("--total " + frontier.totals + ": " + error.what());
    }
  });
  if (set.parse(arguments) == OptionSet::Parsed::kDone) return 0;
  CommandWords words = scoring_again(plan, "verify");
  words.add("schedule", schedule);
  if (!file) words.add("against", against);
  if (!frontier.totals.empty()) words.add("total", frontier.totals);
  words.flag("equal-even", frontier.equal_even);
  const std::string again = words.line();
  if (file) return verify_totals(plan, *file, std::move(points), frontier, again, model);

  std::cerr << detectable_line(plan);
  const Scores done = score(plan, model);
  const std::vector<Score>& scores = done.schedules;
  const evaluation::PairedTest test = evaluation::compare_scores(scores[0].scores, scores[1].scores);
  if (frontier.json) {
    nlohmann::ordered_json result = plan_json(plan);
    result["schedule"] = score_json(scores[0]);
    result["against"] = score_json(scores[1]);
    result["paired"] = to_json(test, "first", "second");
    result["verdict"] = outcome(test);
    result["seconds"] = done.seconds;
    result["command"] = again;
    std::cout << result.dump(2) << '\n';
    return 0;
  }
  std::cout << describe(plan) << '\n';
  for (const Score& score : scores)
    std::cout << fmt::format("{}: {}\n", score.schedule.label, text(evaluation::accuracy_of(score.scores)));
  std::cout << format_test(test) << '\n'
            << sentence(scores[0], scores[1], test) << "\nagain: " << again << '\n';
  return 0;
}

}  // namespace allot::app
