// allot compare: whether two engines, or two schedules, answer the same questions equally well, from files of
// graded replies. It runs no model.
#include <spdlog/fmt/fmt.h>

#include <filesystem>
#include <iostream>

#include "app/cli/command.h"
#include "app/cli/options.h"
#include "base/error.h"
#include "base/json.h"
#include "evaluation/accuracy.h"
#include "evaluation/graded_replies.h"

namespace allot::app {
namespace {

using evaluation::GradedReplies;
using evaluation::RepliesComparison;

evaluation::Accuracy accuracy(const GradedReplies& graded) {
  std::vector<double> scores;
  for (const evaluation::GradedReply& reply : graded.replies) scores.push_back(reply.score);
  return evaluation::accuracy_of(scores);
}

std::string accuracy_line(const char* which, const GradedReplies& graded) {
  const evaluation::Accuracy found = accuracy(graded);
  return fmt::format("{:<7} {}: {} of {} right, {}\n", which, graded.label, found.correct, found.questions,
                     evaluation::text(found));
}

std::string verdict(const RepliesComparison& comparison) {
  if (comparison.within_interval())
    return "no difference found: the 95% interval of the paired difference holds 0";
  return fmt::format("a difference: the first is {} by more than chance gives",
                     comparison.test.difference > 0 ? "better" : "worse");
}

std::string table(const GradedReplies& first, const GradedReplies& second,
                  const RepliesComparison& comparison) {
  constexpr size_t kMostShown = 40;
  const evaluation::PairedTest& test = comparison.test;
  std::string text = accuracy_line("first", first) + accuracy_line("second", second);
  text +=
      fmt::format("first against second: {} ({}; {} questions higher in the first, {} in the second)\n{}\n",
                  evaluation::text(test), test.method(), test.pairs.only_first, test.pairs.only_second,
                  verdict(comparison));
  if (comparison.same_replies)
    text += fmt::format("the same reply to {} of {} questions\n", *comparison.same_replies, test.questions);
  if (comparison.different.empty()) return text;
  text += fmt::format("\n{:>10}  {:>6}  {:>6}\n", "question", "first", "second");
  for (const evaluation::ScoreDifference& one : comparison.different) {
    if (&one == comparison.different.data() + kMostShown)
      return text + fmt::format("and {} more, which --json has\n", comparison.different.size() - kMostShown);
    text += fmt::format("{:>10}  {:>6.4g}  {:>6.4g}\n", one.question, one.first, one.second);
  }
  return text;
}

nlohmann::ordered_json result_json(const GradedReplies& first, const GradedReplies& second,
                                   const RepliesComparison& comparison) {
  nlohmann::ordered_json json;
  for (const auto& [name, graded] : {std::pair("first", &first), std::pair("second", &second)}) {
    json[name] = {{"replies", graded->label}};
    json[name].update(evaluation::to_json(accuracy(*graded)));
  }
  json["paired"] = evaluation::to_json(comparison.test, "first", "second");
  json["within_interval"] = comparison.within_interval();
  json["same_replies"] =
      comparison.same_replies ? nlohmann::ordered_json(*comparison.same_replies) : nlohmann::ordered_json();
  json["different"] = nlohmann::ordered_json::array();
  for (const evaluation::ScoreDifference& one : comparison.different)
    json["different"].push_back({{"question", one.question}, {"first", one.first}, {"second", one.second}});
  return json;
}

}  // namespace

int run_compare(std::span<const std::string> arguments) {
  std::string first, second, schedule, against;
  bool json = false;
  OptionSet set(
      "compare",
      "compare two files of graded replies (eval --details, grade --keep) to the same questions: the paired "
      "difference with its 95 % interval, how many replies are the same, and the questions whose scores differ",
      "allot compare eval.jsonl transformers.jsonl");
  set.positional("first", &first, "FILE", "graded replies, a JSON object a line (docs/serving.md)");
  set.positional("second", &second, "FILE",
                 "those to compare with; default the first, under another schedule");
  set.text("schedule", &schedule, "SCHEDULE", "of a first file with several schedules, the one to take");
  set.text("against", &against, "SCHEDULE", "the same for the second file");
  set.flag("json", &json, "print the result as JSON");
  set.require("first");
  set.resolve_with([&] {
    if (second.empty()) second = first;
    if (second == first && schedule == against)
      throw UsageError("there is nothing to compare " + first +
                       " with; give a second file, or two schedules of it with --schedule and --against");
  });
  if (set.parse(arguments) == OptionSet::Parsed::kDone) return 0;

  const GradedReplies one = evaluation::read_graded_replies(first, schedule);
  const GradedReplies other = evaluation::read_graded_replies(second, against);
  const RepliesComparison comparison = evaluation::compare_replies(one, other);
  std::cout << (json ? result_json(one, other, comparison).dump(2) + "\n" : table(one, other, comparison));
  return 0;
}

}  // namespace allot::app
