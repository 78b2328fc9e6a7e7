// allot verify: whether one schedule is better than another, question by question.
#include <spdlog/fmt/fmt.h>

#include <array>
#include <iostream>
#include <nlohmann/json.hpp>

#include "app/cli/command.h"
#include "app/scoring/scoring.h"

namespace allot::app {
namespace {

constexpr double kSignificance = 0.05;

// "better", "worse" or "undecided".
std::string outcome(const worker::PairedVerdict& verdict) {
  if (verdict.p_value >= kSignificance) return "undecided";
  return verdict.pairs.only_first > verdict.pairs.only_second ? "better" : "worse";
}

std::string sentence(const Score& first, const Score& second, const std::string& outcome) {
  const std::string& a = first.schedule.label;
  const std::string& b = second.schedule.label;
  if (outcome == "undecided")
    return fmt::format("undecided: {} and {} do not differ significantly on these {} questions", a, b,
                       first.answers.correct.size());
  return fmt::format("{}: {} scores {} than {}", outcome, a, outcome == "better" ? "higher" : "lower", b);
}

}  // namespace

int run_verify(std::span<const std::string> arguments) {
  ScoringOptions options;
  std::string schedule;
  std::string against = "uniform";
  bool json = false;
  OptionSet set(
      "verify",
      "Say whether one schedule scores higher than another: both answer the same questions with the same "
      "draws.",
      "allot verify --model assets/tiny-gsm --data assets/tiny-gsm/heldout.jsonl --schedule 33,8,7,3,4,2,3,4 "
      "--against uniform");
  declare_scoring_options(&set, &options);
  set.text("schedule", &schedule, "S", "dense, uniform:N, a,b,c,… or a schedule.json");
  set.text("against", &against, "S", "the same; uniform is the first schedule's total spread evenly");
  set.flag("json", &json, "print the result as JSON");
  set.require("schedule");
  if (set.parse(arguments) == OptionSet::Parsed::kDone) return 0;

  Scoring scoring(options, set);
  std::vector<NamedSchedule> schedules = scoring.schedules(std::array{schedule});
  if (against == "uniform") {
    schedules.push_back(even_spread(schedules.front()));
  } else {
    const std::vector<NamedSchedule> second = scoring.schedules(std::array{against});
    schedules.insert(schedules.end(), second.begin(), second.end());
  }
  const std::vector<Score> scores = scoring.run(schedules);
  const worker::PairedVerdict verdict = worker::compare(scores[0].answers, scores[1].answers);
  if (json) {
    nlohmann::ordered_json result = scoring.settings_json();
    result["schedule"] = score_json(scores[0]);
    result["against"] = score_json(scores[1]);
    result["paired"] = verdict_json(verdict);
    result["verdict"] = outcome(verdict);
    result["seconds"] = scoring.seconds();
    std::cout << result.dump(2) << '\n';
    return 0;
  }
  for (const Score& score : scores)
    std::cout << fmt::format("{}: {}\n", score.schedule.label, format_accuracy(score.answers.proportion()));
  std::cout << format_verdict(verdict) << '\n' << sentence(scores[0], scores[1], outcome(verdict)) << '\n';
  return 0;
}

}  // namespace allot::app
