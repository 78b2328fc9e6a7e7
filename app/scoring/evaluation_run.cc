#include "app/scoring/evaluation_run.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "app/cli/version.h"
#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "evaluation/conditions.h"
#include "evaluation/grader_process.h"
#include "evaluation/json_fields.h"

namespace allot::app {
namespace {

using Json = nlohmann::ordered_json;
struct AskedSchedule {
  std::vector<int32_t> samples;  // none are dense attention
  std::vector<policy::ScheduleBand> bands;
  friend bool operator==(const AskedSchedule&, const AskedSchedule&) = default;
};
using Schedules = std::map<std::string, AskedSchedule>;  // by label

constexpr int kVersion = 1;

struct Asked {
  evaluation::Conditions conditions;
  std::string device;  // its kind, whose rounding the answers have
  Schedules schedules;
};

Json to_json(const AskedSchedule& asked) {
  Json json = {{"samples", asked.samples.empty() ? Json() : evaluation::samples_json(asked.samples)}};
  if (!asked.bands.empty()) json["bands"] = bands_json(asked.bands);
  return json;
}

std::string format_asked(const Asked& asked) {
  Json schedules = Json::array();
  for (const auto& [label, schedule] : asked.schedules) {
    schedules.push_back({{"schedule", label}});
    schedules.back().update(to_json(schedule));
  }
  return Json{{"schema_version", kVersion},
              {"tool_version", version()},
              {"conditions", evaluation::to_json(asked.conditions)},
              {"device", asked.device},
              {"schedules", std::move(schedules)}}
             .dump(2) +
         "\n";
}

Asked read_asked(const std::filesystem::path& file) {
  const Json json = evaluation::parse_document(read_file(file), kVersion, file.string());
  std::vector<std::string> faults;
  Asked asked;
  {
    evaluation::JsonFields fields(json, "", &faults);
    fields.integer<int32_t>("schema_version", kVersion, kVersion);
    fields.text("tool_version");
    asked.conditions = evaluation::read_conditions(fields.value("conditions"), "conditions", &faults);
    asked.device = fields.text("device");
    const Json& schedules = fields.value("schedules");
    if (!schedules.is_array()) fields.fault("'schedules' is no list");
    for (size_t i = 0; schedules.is_array() && i < schedules.size(); ++i) {
      evaluation::JsonFields one(schedules[i], fmt::format("schedules[{}]", i), &faults);
      const std::string label = one.text("schedule");
      AskedSchedule& schedule = asked.schedules[label];
      if (!one.value("samples").is_null()) schedule.samples = one.samples("samples", 0);
      if (one.has("bands"))
        schedule.bands = read_bands(one.value("bands"), one.full("bands"), /*floor=*/0, &faults);
    }
  }
  if (!faults.empty()) throw CorruptFile(fmt::format("{}: {}", file.string(), fmt::join(faults, "; ")));
  return asked;
}

bool may_differ(const std::string& field, bool regrade) {
  if (field == "task.version" || field == "task.definition_sha256") return regrade;
  return field != "seed" && !evaluation::decides_results(field);
}

// What is asked now, and what was asked before beside it. Throws Mismatch.
Asked joined(const std::filesystem::path& file, Asked before, const Asked& now, bool regrade) {
  std::vector<evaluation::Difference> differences =
      evaluation::differences(before.conditions, now.conditions);
  std::erase_if(differences,
                [&](const evaluation::Difference& one) { return may_differ(one.field, regrade); });
  if (!differences.empty())
    throw Mismatch(
        fmt::format("{} is an evaluation under other conditions (there against here): {}; leave out "
                    "the options that change them, or name another directory",
                    file.string(), evaluation::describe(differences)));
  if (before.device != now.device)
    throw Mismatch(
        fmt::format("{} was begun on {}, whose rounding is another than that of {}; go on with --device "
                    "{}, or name another directory",
                    file.string(), before.device, now.device, before.device));
  for (const auto& [label, schedule] : now.schedules) {
    const auto [known, added] = before.schedules.try_emplace(label, schedule);
    if (!added && known->second != schedule)
      throw Mismatch(
          fmt::format("{} has other samples under the name '{}' ({}; here {}); name another directory",
                      file.string(), label, to_json(known->second).dump(), to_json(schedule).dump()));
  }
  return {.conditions = now.conditions, .device = now.device, .schedules = std::move(before.schedules)};
}

Asked asked_of(const ScoringPlan& plan) {
  Asked asked{.conditions = plan.conditions,
              .device = plan.options.device.substr(0, plan.options.device.find(':')),
              .schedules = {}};
  for (const NamedSchedule& named : plan.schedules) {
    const AskedSchedule schedule{
        .samples = named.schedule ? named.schedule->samples : std::vector<int32_t>(),
        .bands = named.has_bands() ? named.file->bands : std::vector<policy::ScheduleBand>()};
    if (const auto [known, added] = asked.schedules.try_emplace(named.label, schedule);
        !added && known->second != schedule)
      throw UsageError(
          fmt::format("two schedules are called '{}'; an evaluation in a directory knows them by "
                      "their names",
                      named.label));
  }
  return asked;
}

}  // namespace

EvaluationRun::EvaluationRun(std::filesystem::path directory, const ScoringPlan& plan, bool regrade)
    : journal_(directory / "replies.jsonl") {
  const std::filesystem::path file = directory / "evaluation.json";
  Asked asked = asked_of(plan);
  if (std::filesystem::exists(file))
    asked = joined(file, read_asked(file), asked, regrade);
  else if (!journal_.answers().empty())
    throw CorruptFile(
        fmt::format("{} has answers in replies.jsonl, and no evaluation.json that says to what; name "
                    "another directory",
                    directory.string()));
  if (regrade) grade_again(plan);
  write_file_atomically(file, format_asked(asked));
}

void EvaluationRun::grade_again(const ScoringPlan& plan) {
  const auto task = evaluation::make_graded_task(
      {plan.conditions.task.name, plan.conditions.task.prompt_style, std::string(plan.task->definition())},
      evaluation::make_grader(plan.options.grader));
  auto answers = journal_.answers();
  for (auto& [key, answer] : answers) {
    const evaluation::Question& question = plan.dataset.questions.at(key.question);
    const evaluation::Grade grade = task->grade(question, answer.reply);
    answer.gold = question.answer;
    answer.answer = grade.answer;
    answer.extracted = grade.extracted;
    answer.score = grade.score;
  }
  journal_.rewrite(std::move(answers));
}

}  // namespace allot::app
