// What eval, verify and ablate are about to do: schedules to score, on which questions, under which
// conditions. Made from their options and from the schedule files these name, without loading the model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "app/cli/options.h"
#include "app/files/schedule_argument.h"
#include "app/run/attention_options.h"
#include "app/run/generation_options.h"
#include "evaluation/conditions.h"
#include "evaluation/task.h"

namespace allot::app {

struct ScoringOptions {
  std::filesystem::path model;
  std::optional<std::filesystem::path> adapter;
  std::filesystem::path data;
  std::string task = "gsm8k";
  std::string prompt_style = "auto";
  int64_t limit = 0;  // 0 = all questions
  kernels::AttentionMethod attention{.estimator = kernels::kUsualEstimator};
  GenerationOptions generation;
  int64_t seed = 0;
  std::string device = "cpu";
  int32_t threads = 0;
  int32_t max_sequences = 256;
  std::filesystem::path details;  // empty: replies are not kept
};

// Declares the options above; --model and --data are required.
void declare_scoring_options(OptionSet* set, ScoringOptions* options);

// The total of `schedule` spread as evenly as it goes over the layers that sample, labelled "uniform". Throws
// UsageError where none does, which has no total.
NamedSchedule even_spread(const NamedSchedule& schedule);

// Conditions that the options are to follow, and where they stand: a schedule file or a run.
struct ConditionsSource {
  std::string place;
  evaluation::Conditions conditions;
};

// Those of a run whose report is to show a result. Throws NotFound where `run` is no run directory.
ConditionsSource conditions_of_run(const std::filesystem::path& run);

// Gives every option of `set` that neither flag nor config file has set the value that the sources say: task,
// prompt style, attention and generation. What a source does not know it does not set. Throws Mismatch naming
// the fields in which the sources contradict each other and no option decides.
void adopt(std::span<const ConditionsSource> sources, OptionSet* set);

struct ScoringPlan {
  ScoringOptions options;  // as resolved
  std::vector<NamedSchedule> schedules;
  std::unique_ptr<evaluation::Task> task;
  evaluation::Dataset dataset;
  evaluation::Conditions conditions;      // measured_on says how many questions are asked
  std::vector<ConditionsSource> sources;  // that the options follow

  uint32_t questions() const { return static_cast<uint32_t>(conditions.measured_on->questions); }
};

// Reads the model's identity, the schedules and the data, adopts the conditions of `run` and of the schedule
// files among the arguments, and sets the fields of `options` to what follows. Throws the errors of the
// readers, Mismatch for schedules of another model or of contradicting conditions, UsageError when --limit
// exceeds the questions.
ScoringPlan plan_scoring(std::span<const std::string> schedules, const std::optional<ConditionsSource>& run,
                         ScoringOptions* options, OptionSet* set);

// What a result rests on: tool version, conditions, the differences from each schedule file, data path,
// device.
nlohmann::ordered_json plan_json(const ScoringPlan& plan);
// The same for people: a line of conditions, and one for each source that they differ from.
std::string describe(const ScoringPlan& plan);

}  // namespace allot::app
