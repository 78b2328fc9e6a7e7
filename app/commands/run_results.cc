#include "app/commands/run_results.h"

#include <fmt/format.h>

#include <algorithm>

#include "aggregator/learned_costs.h"
#include "aggregator/outlook.h"
#include "aggregator/run_directory.h"
#include "app/cli/version.h"
#include "app/report/report.h"
#include "app/report/run_summary.h"
#include "app/report/run_text.h"
#include "app/report/tensorboard_events.h"
#include "app/report/verdict.h"
#include "app/run/run_directory.h"
#include "app/view/progress.h"
#include "app/view/status_view.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/number_text.h"
#include "evaluation/accuracy.h"
#include "evaluation/json_fields.h"
#include "policy/learner.h"

namespace allot::app {
namespace {

using json_t = nlohmann::ordered_json;

struct NamedRecord {
  const char* label;
  const std::optional<evaluation::Accuracy>* record;
};

std::vector<NamedRecord> named(const EvaluationRecord& evaluation) {
  return {{"uniform", &evaluation.uniform}, {"learned", &evaluation.learned}, {"dense", &evaluation.dense}};
}

std::string_view unit_name(const aggregator::RunData& run) {
  return kernels::name(unit_of(run.spec));
}

std::string samples_of(const aggregator::RunData& run, const std::string& label) {
  const aggregator::ScoreRow* score = find_score(run, label);
  if (score == nullptr || score->samples.empty()) return "exact attention";
  return layers_text(score->samples);
}

std::vector<std::pair<std::string, std::filesystem::path>> files(const aggregator::RunData& run,
                                                                 const std::filesystem::path& directory) {
  std::vector<std::pair<std::string, std::filesystem::path>> files;
  if (!stopped_by_preflight(run)) files.emplace_back("schedule", schedule_file(directory));
  files.insert(files.end(), {{"report", report_file(directory)},
                             {"history", aggregator::history_path(directory)},
                             {"tensorboard", tensorboard_directory(directory)}});
  return files;
}

std::string verdict_lines(const Verdict& verdict) {
  std::string text;
  if (verdict.to_dense)
    text += fmt::format("learned against dense: {}\n", evaluation::text(*verdict.to_dense));
  if (!verdict.no_update.empty()) text += verdict.no_update + "\n";
  text += verdict.learning + "\n";
  for (const ReplyCounts& replies : verdict.replies_of) text += app::text(replies) + "\n";
  if (verdict.lost > 0)
    text += fmt::format("{} questions are right with dense attention and not with the learned schedule\n",
                        verdict.lost);
  if (!verdict.rows.empty()) {
    text += "value rows that a token reads, of dense attention's:";
    for (const RowsRead& row : verdict.rows) {
      text += fmt::format(" {} at {}k",
                          percent(static_cast<double>(row.learned) / static_cast<double>(row.dense), 2),
                          row.context / 1024);
    }
    text += " keys, at most\n";
  }
  return text;
}

// "a decode step takes, dense against learned, on cuda:0 …: 812 and 655 us at 1k, …".
std::string step_time_line(const std::optional<evaluation::StepTimes>& times,
                           const std::filesystem::path& directory) {
  if (!times)
    return fmt::format(
        "time of a decode step: not measured; allot bench schedule --run {} --device DEVICE does\n",
        directory.string());
  std::string text = fmt::format(
      "a decode step of {} sequences takes, dense and learned, on {}:", times->sequences, times->device);
  for (const evaluation::ContextTimes& one : times->contexts)
    text += fmt::format(" {:.0f} and {:.0f} us at {}", one.dense.median, one.schedule.median,
                        context_text(one.context));
  return text + " keys\n";
}

json_t step_times_json(const evaluation::StepTimes& times) {
  json_t json = {{"device", times.device}, {"sequences", times.sequences}, {"contexts", json_t::array()}};
  for (const evaluation::ContextTimes& one : times.contexts)
    json["contexts"].push_back(
        {{"context", one.context}, {"dense_us", one.dense.median}, {"learned_us", one.schedule.median}});
  return json;
}

json_t row_json(const RowsRead& row) {
  return {{"context", row.context},
          {"dense", row.dense},
          {"learned", row.learned},
          {"dense_bytes", row.dense_bytes},
          {"learned_bytes", row.learned_bytes}};
}

json_t reply_json(const QuestionResult& result) {
  return {{"score", result.score},
          {"cut_off", result.finish == Finish::kLength},
          {"no_answer", result.no_answer},
          {"tokens", result.output_tokens}};
}

json_t verdict_json(const aggregator::RunData& run, const Verdict& verdict) {
  json_t json = {{"settled", run.settled},        {"outlook", nullptr},
                 {"learning", verdict.learning},  {"no_update", nullptr},
                 {"paired_to_dense", nullptr},    {"replies", json_t::object()},
                 {"lost", verdict.lost},          {"lost_questions", json_t::array()},
                 {"value_rows", json_t::array()}, {"command", verdict.command}};
  const auto outlook =
      run.versions.empty() ? std::nullopt : aggregator::outlook_of(run.versions.back().described);
  if (outlook) {
    const auto& gain = outlook->over_even;
    json["outlook"] = {
        {"gain", gain.mean}, {"interval_95", {gain.low, gain.high}}, {"left_to_gain", outlook->left_to_gain}};
  }
  if (!verdict.no_update.empty()) json["no_update"] = verdict.no_update;
  if (verdict.to_dense) json["paired_to_dense"] = to_json(*verdict.to_dense, "learned", "dense");
  for (const ReplyCounts& replies : verdict.replies_of) {
    json["replies"][replies.label] = {
        {"n", replies.all}, {"cut_off", replies.cut_off}, {"no_answer", replies.no_answer}};
  }
  for (const LostQuestion& lost : verdict.lost_questions) {
    json["lost_questions"].push_back({{"question", lost.question},
                                      {"dense", reply_json(lost.dense)},
                                      {"learned", reply_json(lost.learned)}});
  }
  for (const RowsRead& row : verdict.rows) json["value_rows"].push_back(row_json(row));
  return json;
}

// What the learner knows of other totals beside its shares; nothing where it knows no more.
std::optional<policy::LayerCosts> costs_of(const aggregator::RunData& run,
                                           const std::filesystem::path& directory) {
  const policy::Learner* learner = policy::find_learner(run.spec.policy().name());
  if (learner == nullptr || !learner->knows_costs) return std::nullopt;
  const std::filesystem::path written = schedule_file(directory);
  try {
    // A replay takes as long as the learner took, and one of an earlier release may learn otherwise.
    if (std::filesystem::exists(written)) {
      const ScheduleFile before = read_schedule_file(written);
      if (before.costs && before.run_id == run.spec.run_id() && before.policy_version == run.policy_version &&
          before.schedule.samples == run.recommended)
        return before.costs;
    }
    return aggregator::learned_costs(directory);
  } catch (const Error& error) {
    spdlog::warn("{} keeps shares of the budget only, other totals follow from these: {}", written.string(),
                 error.what());
    return std::nullopt;
  }
}

}  // namespace

void write_results(const std::filesystem::path& run_directory) {
  ReportInput input = read_run_input(run_directory);
  if (!stopped_by_preflight(input.run)) {
    ScheduleFile file = schedule_file_of(input.run, version());
    if (const auto costs = costs_of(input.run, run_directory)) file.costs = costs;
    write_schedule_file(schedule_file(run_directory), file);
  }
  // A foreign ablation.json or frontier.json costs the report, not the schedule.
  add_measurements(&input);
  write_file_atomically(report_file(run_directory), report_page(input));
  TensorboardFollower(run_directory, tensorboard_directory(run_directory)).update();
}

std::string format_results(const aggregator::RunData& run, const std::filesystem::path& run_directory,
                           const std::string& grader) {
  const EvaluationRecord evaluation = evaluate(run);
  const Verdict verdict = verdict_of(run, run_directory.string(), grader);
  std::string text;
  if (run.preflight) {
    for (const std::string& line : preflight_lines(*run.preflight, 0)) text += "preflight  " + line + "\n";
  }
  if (!run.scores.empty()) {
    text += fmt::format("{:<9}{:>12}{:>11}   {:<18}{}\n", "", "correct", "accuracy", "95% interval",
                        fmt::format("{} per layer", unit_name(run)));
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
  if (!stopped_by_preflight(run)) {
    text += fmt::format("schedule of {}: {}\n", total_text(run.spec), layers_text(run.recommended));
    text += fmt::format("{} episodes and the verification took {}\n", run.episodes_learned(),
                        duration_text(run.elapsed_s));
    text += verdict_lines(verdict);
    text += step_time_line(step_times_of(run, run_directory), run_directory);
  }
  text += "again:       " + verdict.command + "\n";
  for (const auto& [name, file] : files(run, run_directory))
    text += fmt::format("  {:<12}{}\n", name, file.string());
  return text;
}

nlohmann::ordered_json results_json(const aggregator::RunData& run,
                                    const std::filesystem::path& run_directory, const std::string& grader) {
  nlohmann::ordered_json json = {
      {"run_id", run.spec.run_id()},
      {"run", run_directory.string()},
      {"stage", run.stage},
      {"schedule", evaluation::samples_json(run.recommended)},
      {"total", run.spec.policy().total()},
      {"unit", unit_name(run)},
      {"episodes", run.episodes_learned()},
      {"seconds", run.elapsed_s},
      {"scores", nlohmann::ordered_json::object()},
      {"paired", nullptr},
      {"preflight", nullptr},
      {"verdict", nullptr},
      {"step_times", nullptr},
      {"files", nlohmann::ordered_json::object()},
  };
  const EvaluationRecord evaluation = evaluate(run);
  for (const auto& [label, record] : named(evaluation)) {
    if (!*record) continue;
    json["scores"][label] = {{"samples", evaluation::samples_json(find_score(run, label)->samples)}};
    json["scores"][label].update(to_json(**record));
  }
  if (evaluation.paired) json["paired"] = to_json(*evaluation.paired, "learned", "uniform");
  if (!stopped_by_preflight(run))
    json["verdict"] = verdict_json(run, verdict_of(run, run_directory.string(), grader));
  if (const auto times = step_times_of(run, run_directory)) json["step_times"] = step_times_json(*times);
  if (run.preflight) json["preflight"] = preflight_json(*run.preflight);
  for (const auto& [name, file] : files(run, run_directory)) json["files"][name] = file.string();
  return json;
}

}  // namespace allot::app
