// allot verify: tests whether one schedule is better than another, question by question.
#include <spdlog/fmt/fmt.h>

#include <iostream>

#include "app/cli/command.h"
#include "app/scoring/scoring.h"
#include "base/json.h"

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

}  // namespace

int run_verify(std::span<const std::string> arguments) {
  ScoringOptions options;
  std::string schedule;
  std::string against = "uniform";
  bool json = false;
  OptionSet set("verify",
                "say whether one schedule scores higher than another: both answer the same questions "
                "with the same draws",
                "allot verify --model assets/tiny-gsm --data assets/tiny-gsm/heldout.jsonl "
                "--schedule 33,8,7,3,4,2,3,4 --against uniform");
  declare_scoring_options(&set, &options);
  set.text("schedule", &schedule, "S", kScheduleForms);
  set.text(
      "against", &against, "S",
      "the schedule to compare with; uniform spreads the first schedule's total evenly over its layers that "
      "sample");
  set.flag("json", &json, "print the result as JSON");
  set.require("schedule");
  ScoringPlan plan;
  set.resolve_with([&] {
    std::vector<std::string> wanted = {schedule};
    if (against != "uniform") wanted.push_back(against);
    plan = plan_scoring(wanted, std::nullopt, &options, &set);
    if (against == "uniform") plan.schedules.push_back(even_spread(plan.schedules.front()));
  });
  if (set.parse(arguments) == OptionSet::Parsed::kDone) return 0;

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
