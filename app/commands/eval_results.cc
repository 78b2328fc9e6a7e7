#include "app/commands/eval_results.h"

#include <spdlog/fmt/fmt.h>
#include <spdlog/fmt/ranges.h>

#include <algorithm>
#include <map>
#include <vector>

#include "app/cli/version.h"
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

// A line for each value of a field and each schedule, under a heading; nothing where no row has the field.
std::string table_by(const std::string& heading, const std::string& field,
                     std::span<const evaluation::Question> questions, std::span<const Score> scores) {
  struct Line {
    std::string_view schedule;
    evaluation::Accuracy accuracy;
  };
  std::map<std::string, std::vector<Line>> lines;
  size_t width = heading.size(), label_width = std::string_view("schedule").size();
  for (const Score& score : scores) {
    label_width = std::max(label_width, score.schedule.label.size());
    for (const auto& [value, accuracy] : evaluation::accuracy_by(field, questions, score.scores)) {
      lines[value].push_back({score.schedule.label, accuracy});
      width = std::max(width, value.size());
    }
  }
  if (lines.empty()) return "";
  std::string text = fmt::format("\n{:<{}}  {:<{}}  {:>7}  {:>7}  {}\n", heading, width, "schedule",
                                 label_width, "n", "correct", "accuracy (95% interval)");
  for (const auto& [value, of_value] : lines)
    for (const auto& [schedule, accuracy] : of_value)
      text += fmt::format("{:<{}}  {:<{}}  {:>7}  {:>7}  {}\n", value, width, schedule, label_width,
                          accuracy.questions, accuracy.correct, evaluation::text(accuracy));
  return text;
}

// The columns that name a row: the task, where there are several, and the schedule.
class NameColumns {
 public:
  explicit NameColumns(std::span<const Evaluated> tasks) {
    for (const Evaluated& task : tasks) {
      if (const std::string& name = task.plan->name; !name.empty())
        task_ = std::max({task_, name.size(), std::string_view("task").size()});
      for (const Score& score : task.scores.schedules)
        schedule_ = std::max(schedule_, score.schedule.label.size());
    }
  }
  std::string text(std::string_view task, std::string_view schedule) const {
    return (task_ == 0 ? "" : fmt::format("{:<{}}  ", task, task_)) +
           fmt::format("{:<{}}", schedule, schedule_);
  }
  std::string text(const Evaluated& task, const Score& score) const {
    return text(task.plan->name, score.schedule.label);
  }

 private:
  size_t task_ = 0, schedule_ = std::string_view("schedule").size();
};

std::string accuracies(std::span<const Evaluated> tasks, const NameColumns& names) {
  const std::string_view unit = kernels::name(tasks.front().plan->conditions.attention.unit);
  size_t samples_width = 8;
  for (const Evaluated& task : tasks)
    for (const Score& score : task.scores.schedules)
      samples_width = std::max(samples_width, samples_text(score.schedule).size());
  std::string text = fmt::format("{}  {:>{}}  {:>7}  {:>7}  {:<24}  {:>13}  {:>10}  {:>7}\n",
                                 names.text("task", "schedule"), unit, samples_width, "n", "correct",
                                 "accuracy (95% interval)", "scored tokens", "new tokens", "cut off");
  for (const Evaluated& task : tasks) {
    for (const Score& score : task.scores.schedules) {
      const evaluation::Accuracy accuracy = evaluation::accuracy_of(score.scores);
      text +=
          fmt::format("{}  {:>{}}  {:>7}  {:>7}  {:<24}  {:>13.1f}  {:>10}  {:>7}\n", names.text(task, score),
                      samples_text(score.schedule), samples_width, accuracy.questions, accuracy.correct,
                      evaluation::text(accuracy), scored_tokens(score), score.output_tokens, score.cut_off);
    }
  }
  return text;
}

// "mmlu, " in front of a heading where there are several tasks.
std::string of_task(const Evaluated& task) {
  return task.plan->name.empty() ? "" : task.plan->name + ", ";
}

}  // namespace

std::string eval_table(std::span<const Evaluated> tasks) {
  const NameColumns names(tasks);
  std::string text = accuracies(tasks, names);
  for (const Evaluated& task : tasks)
    for (const std::string& field : task.plan->task->by())
      text += table_by(of_task(task) + field, field, task.plan->dataset.questions, task.scores.schedules);
  std::string repeats;
  for (const Evaluated& task : tasks)
    for (const Score& score : task.scores.schedules)
      if (!score.repeats.empty())
        repeats += fmt::format("{}  {}\n", names.text(task, score), repeats_text(score));
  if (!repeats.empty()) text += "\naccuracy of each repeat (%)\n" + repeats;
  for (const Evaluated& task : tasks) {
    const std::span<const Score> scores = task.scores.schedules;
    if (scores.size() > 1)
      text += fmt::format("\n{}against {} ({})\n", of_task(task), scores.front().schedule.label,
                          against(scores[1], scores[0]).method());
    for (const Score& score : scores.subspan(1))
      text += fmt::format("{}  {}\n", names.text(task, score), format_test(against(score, scores.front())));
  }
  return text;
}

nlohmann::ordered_json eval_json(const Evaluated& task) {
  const ScoringPlan& plan = *task.plan;
  const std::vector<Score>& scores = task.scores.schedules;
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
  if (!plan.options.run.empty()) json["answered_before"] = task.scores.answered_before;
  json["seconds"] = task.scores.seconds;
  json["command"] = task.again;
  return json;
}

nlohmann::ordered_json eval_json(std::span<const Evaluated> tasks, const std::string& suite) {
  nlohmann::ordered_json all = {
      {"tool_version", version()}, {"suite", suite}, {"tasks", nlohmann::ordered_json::array()}};
  for (const Evaluated& task : tasks) {
    nlohmann::ordered_json one = {{"name", task.plan->name}};
    one.update(eval_json(task));
    all["tasks"].push_back(std::move(one));
  }
  return all;
}

}  // namespace allot::app
