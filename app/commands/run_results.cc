#include "app/commands/run_results.h"

#include <fmt/format.h>

#include <algorithm>

#include "aggregator/run_directory.h"
#include "app/cli/version.h"
#include "app/report/report.h"
#include "app/report/run_summary.h"
#include "app/report/tensorboard_events.h"
#include "app/run/run_directory.h"
#include "app/view/progress.h"
#include "base/file.h"
#include "base/number_text.h"
#include "evaluation/accuracy.h"
#include "evaluation/json_fields.h"

namespace allot::app {
namespace {

struct NamedRecord {
  const char* label;
  const std::optional<evaluation::Accuracy>* record;
};

std::vector<NamedRecord> named(const EvaluationRecord& evaluation) {
  return {{"uniform", &evaluation.uniform}, {"learned", &evaluation.learned}, {"dense", &evaluation.dense}};
}

std::string samples_of(const aggregator::RunData& run, const std::string& label) {
  const auto score = std::ranges::find(run.scores, label, &aggregator::ScoreRow::label);
  if (score == run.scores.end() || score->samples.empty()) return "exact attention";
  return layers_text(score->samples);
}

std::vector<std::pair<std::string, std::filesystem::path>> files(const std::filesystem::path& run) {
  return {{"schedule", schedule_file(run)},
          {"report", report_file(run)},
          {"history", aggregator::history_path(run)},
          {"tensorboard", tensorboard_directory(run)}};
}

}  // namespace

void write_results(const std::filesystem::path& run_directory) {
  const ReportInput input = read_report_input(run_directory);
  write_schedule_file(schedule_file(run_directory), schedule_file_of(input.run, version()));
  write_file_atomically(report_file(run_directory), report_page(input));
  TensorboardFollower(run_directory, tensorboard_directory(run_directory)).update();
}

std::string format_results(const aggregator::RunData& run, const std::filesystem::path& run_directory) {
  const EvaluationRecord evaluation = evaluate(run);
  std::string text;
  if (!run.scores.empty()) {
    text += fmt::format("{:<9}{:>12}{:>11}   {:<18}{}\n", "", "correct", "accuracy", "95% interval",
                        "samples per layer");
  }
  for (const auto& [label, record] : named(evaluation)) {
    if (!*record) continue;
    const evaluation::Accuracy& accuracy = **record;
    text += fmt::format("{:<9}{:>12}{:>11}   {:<18}{}\n", label,
                        fmt::format("{}/{}", accuracy.correct, accuracy.questions), percent(accuracy.value),
                        percent_range(accuracy.interval.low, accuracy.interval.high), samples_of(run, label));
  }
  if (const auto& paired = evaluation.paired) {
    text += fmt::format("learned against uniform: {} ({}; {} questions gained, {} lost)\n",
                        evaluation::text(*paired), paired->method(), paired->pairs.only_first,
                        paired->pairs.only_second);
  }
  text +=
      fmt::format("schedule of {} samples: {}\n", run.spec.policy().total(), layers_text(run.recommended));
  text += fmt::format("{} episodes and the verification took {}\n", run.episodes_learned(),
                      format_seconds(run.elapsed_s));
  for (const auto& [name, file] : files(run_directory))
    text += fmt::format("  {:<12}{}\n", name, file.string());
  return text;
}

nlohmann::ordered_json results_json(const aggregator::RunData& run,
                                    const std::filesystem::path& run_directory) {
  nlohmann::ordered_json json = {
      {"run_id", run.spec.run_id()},
      {"run", run_directory.string()},
      {"stage", run.stage},
      {"schedule", evaluation::samples_json(run.recommended)},
      {"total", run.spec.policy().total()},
      {"episodes", run.episodes_learned()},
      {"seconds", run.elapsed_s},
      {"scores", nlohmann::ordered_json::object()},
      {"paired", nullptr},
      {"files", nlohmann::ordered_json::object()},
  };
  const EvaluationRecord evaluation = evaluate(run);
  for (const auto& [label, record] : named(evaluation)) {
    if (!*record) continue;
    const auto score = std::ranges::find(run.scores, label, &aggregator::ScoreRow::label);
    json["scores"][label] = {{"samples", evaluation::samples_json(score->samples)}};
    json["scores"][label].update(to_json(**record));
  }
  if (evaluation.paired) json["paired"] = to_json(*evaluation.paired, "learned", "uniform");
  for (const auto& [name, file] : files(run_directory)) json["files"][name] = file.string();
  return json;
}

}  // namespace allot::app
