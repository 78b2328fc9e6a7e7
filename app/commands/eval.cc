// allot eval: how many questions a model answers right under dense attention or under schedules.
#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "app/commands/scoring_commands.h"
#include "app/scoring/scoring.h"
#include "base/error.h"
#include "base/json.h"

namespace allot::app {
namespace {

// "64", "48 + 2 exact", "all".
std::string samples_text(const NamedSchedule& named) {
  if (!named.schedule) return "all";
  const int64_t exact = exact_layers(named.schedule->samples);
  const int64_t total = named.schedule->total();
  return exact == 0 ? fmt::format("{}", total) : fmt::format("{} + {} exact", total, exact);
}

// "41.0  39.8  42.2".
std::string repeats_text(const Score& score) {
  std::vector<std::string> repeats;
  for (const std::vector<double>& repeat : score.repeats)
    repeats.push_back(fmt::format("{:.1f}", 100 * evaluation::accuracy_of(repeat).value));
  return fmt::format("{}", fmt::join(repeats, "  "));
}

evaluation::PairedTest against(const Score& first, const Score& second) {
  return evaluation::compare_scores(first.scores, second.scores);
}

// Where answers are kept and how many of them others have given; empty where they are not kept.
std::string run_line(const ScoringPlan& plan, int64_t answered_before) {
  const ScoringOptions& options = plan.options;
  if (options.run.empty()) return "";
  return fmt::format("  {} of {} answers were in {} before\n", answered_before,
                     int64_t{plan.questions()} * options.repeats * std::ssize(plan.schedules),
                     options.run.string());
}

// A line for each value of a field and each schedule; nothing where no row has the field.
std::string table_by(const std::string& field, std::span<const evaluation::Question> questions,
                     std::span<const Score> scores) {
  struct Line {
    std::string_view schedule;
    evaluation::Accuracy accuracy;
  };
  std::map<std::string, std::vector<Line>> lines;
  size_t width = field.size(), label_width = std::string_view("schedule").size();
  for (const Score& score : scores) {
    label_width = std::max(label_width, score.schedule.label.size());
    for (const auto& [value, accuracy] : evaluation::accuracy_by(field, questions, score.scores)) {
      lines[value].push_back({score.schedule.label, accuracy});
      width = std::max(width, value.size());
    }
  }
  if (lines.empty()) return "";
  std::string text = fmt::format("\n{:<{}}  {:<{}}  {:>7}  {:>7}  {}\n", field, width, "schedule",
                                 label_width, "n", "correct", "accuracy (95% interval)");
  for (const auto& [value, of_value] : lines)
    for (const auto& [schedule, accuracy] : of_value)
      text += fmt::format("{:<{}}  {:<{}}  {:>7}  {:>7}  {}\n", value, width, schedule, label_width,
                          accuracy.questions, accuracy.correct, evaluation::text(accuracy));
  return text;
}

std::string table(const ScoringPlan& plan, std::span<const Score> scores) {
  const std::string_view unit = kernels::name(plan.conditions.attention.unit);
  size_t width = std::string_view("schedule").size(), samples_width = 8;
  for (const Score& score : scores) {
    width = std::max(width, score.schedule.label.size());
    samples_width = std::max(samples_width, samples_text(score.schedule).size());
  }
  std::string text = fmt::format("{:<{}}  {:>{}}  {:>7}  {:>7}  {:<24}  {:>13}  {:>10}  {:>7}\n", "schedule",
                                 width, unit, samples_width, "n", "correct", "accuracy (95% interval)",
                                 "scored tokens", "new tokens", "cut off");
  for (const Score& score : scores) {
    const evaluation::Accuracy accuracy = evaluation::accuracy_of(score.scores);
    text +=
        fmt::format("{:<{}}  {:>{}}  {:>7}  {:>7}  {:<24}  {:>13.1f}  {:>10}  {:>7}\n", score.schedule.label,
                    width, samples_text(score.schedule), samples_width, accuracy.questions, accuracy.correct,
                    evaluation::text(accuracy), scored_tokens(score), score.output_tokens, score.cut_off);
  }
  for (const std::string& field : plan.task->by()) text += table_by(field, plan.dataset.questions, scores);
  if (!scores.front().repeats.empty()) {
    text += "\naccuracy of each repeat (%)\n";
    for (const Score& score : scores)
      text += fmt::format("{:<{}}  {}\n", score.schedule.label, width, repeats_text(score));
  }
  if (scores.size() > 1)
    text += fmt::format("\nagainst {} ({})\n", scores.front().schedule.label,
                        against(scores[1], scores[0]).method());
  for (const Score& score : scores.subspan(1))
    text +=
        fmt::format("{:<{}}  {}\n", score.schedule.label, width, format_test(against(score, scores.front())));
  return text;
}

nlohmann::ordered_json result_json(const ScoringPlan& plan, const Scores& done, const std::string& again) {
  const std::vector<Score>& scores = done.schedules;
  nlohmann::ordered_json json = plan_json(plan);
  json["schedules"] = nlohmann::ordered_json::array();
  for (const Score& score : scores) {
    json["schedules"].push_back(score_json(score));
    for (const std::string& field : plan.task->by())
      for (const auto& [value, accuracy] :
           evaluation::accuracy_by(field, plan.dataset.questions, score.scores))
        json["schedules"].back()["by"][field][value] = evaluation::to_json(accuracy);
    if (&score != scores.data())
      json["schedules"].back()["against_first"] = to_json(against(score, scores.front()), "first", "second");
  }
  if (!plan.options.run.empty()) json["answered_before"] = done.answered_before;
  json["seconds"] = done.seconds;
  json["command"] = again;
  return json;
}

}  // namespace

int eval(std::span<const std::string> arguments, ModelHere* model) {
  ScoringOptions options;
  std::vector<std::string> wanted;
  bool json = false;
  OptionSet set(
      "eval",
      "score a model under dense attention or under schedules, on the same questions with the same draws",
      "allot eval --model assets/tiny-gsm --data assets/tiny-gsm/heldout.jsonl "
      "--schedule dense --schedule uniform:8");
  declare_scoring_options(&set, &options);
  set.texts("schedule", &wanted, "SCHEDULE",
            fmt::format("{}; may be given several times; default config where there is one, else dense",
                        kScheduleForms)
                .c_str());
  set.suggest("schedule", {"dense", "config"});
  declare_evaluation_run(&set, &options);
  declare_lease_options(&set, &options);
  declare_executed_out(&set, &options);
  set.flag("json", &json, "print the result as JSON");
  ScoringPlan plan;
  set.resolve_with([&] {
    if (wanted.empty()) wanted = {usual_schedule(options.model)};
    plan = plan_scoring(wanted, std::nullopt, &options, &set);
  });
  if (set.parse(arguments) == OptionSet::Parsed::kDone) return 0;

  std::cerr << detectable_line(plan);
  const Scores scores = score(plan, model);
  CommandWords words = scoring_again(plan, "eval");
  for (const std::string& schedule : wanted) words.add("schedule", schedule);
  const std::string again = words.line();
  std::cout << (json ? result_json(plan, scores, again).dump(2) + "\n"
                     : describe(plan) + run_line(plan, scores.answered_before) + "\n" +
                           table(plan, scores.schedules) + "\nagain: " + again + "\n");
  return 0;
}

}  // namespace allot::app
