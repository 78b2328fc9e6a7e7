// What eval, verify and ablate are about to do: schedules to score, on which questions, under which
// conditions. Made from their options and from the schedule files these name, without loading the model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "app/cli/options.h"
#include "app/files/command_words.h"
#include "app/run/data_options.h"
#include "app/run/grader_option.h"
#include "app/run/listen_options.h"
#include "app/scoring/reply_plan.h"
#include "evaluation/task.h"

namespace allot::app {

// How questions are answered by workers (leased_answers.h).
struct LeaseOptions {
  ListenOptions listen;  // without an address a model in this process answers
  int64_t lease_seconds = 120;
  int32_t max_attempts = 5;
};

struct ScoringOptions : ReplyOptions {
  std::filesystem::path data;
  evaluation::FieldNames fields;  // of the data
  int64_t limit = 0;              // 0 = all questions
  GraderOption grading;
  std::string grader;             // grading.grader(), once the plan is made
  std::filesystem::path details;  // empty: replies are not kept
  int32_t repeats = 1;            // times that each question is asked, with other draws
  std::filesystem::path run;      // directory of the evaluation (evaluation_run.h); empty: none
  bool regrade = false;           // the answers in it are graded again
  LeaseOptions leases;
  std::filesystem::path lm_eval;  // directory for lm_eval_files.h; empty: none
};

// Declares the options above; --model and --data are required.
void declare_scoring_options(OptionSet* set, ScoringOptions* options);

// Declares the options of `leases`, for commands that keep answers in a directory.
void declare_lease_options(OptionSet* set, ScoringOptions* options);

// The total of `schedule` spread as evenly as it goes over the layers that sample, labelled "uniform". Throws
// UsageError where none does, which has no total.
NamedSchedule even_spread(const NamedSchedule& schedule);

// Declares --repeats, --run, --regrade and --lm-eval-out, for eval.
void declare_evaluation_run(OptionSet* set, ScoringOptions* options);
// Declares --answers, for commands in which --run is the run that learned: eval's --run by another name.
void declare_answers(OptionSet* set, ScoringOptions* options);

struct ScoringPlan : ReplyPlan {  // conditions.measured_on says how many questions are asked
  std::string name;               // among the tasks that are evaluated together; empty where it is alone
  ScoringOptions options;         // as resolved
  evaluation::Dataset dataset;
  bool keep_replies = false;  // Score::replies

  uint32_t questions() const { return static_cast<uint32_t>(conditions.measured_on->questions); }
};

// plan_replies, and the data. Throws what that throws, the errors of the data's reader, and UsageError when
// --limit exceeds the questions.
ScoringPlan plan_scoring(std::span<const std::string> schedules, const std::optional<ConditionsSource>& run,
                         ScoringOptions* options, OptionSet* set);

// The words of `command` that score under the plan's conditions again, on the same questions and kind of
// device; the caller adds the schedules.
CommandWords scoring_again(const ScoringPlan& plan, std::string_view command);

// What a result rests on: tool version, conditions, the differences from each schedule file, data path,
// device.
nlohmann::ordered_json plan_json(const ScoringPlan& plan);
// The same for people: a line of conditions, and one for each source that they differ from.
std::string describe(const ScoringPlan& plan);
// How small a difference between two of the plan's schedules its questions can show, to be said before they
// are asked; empty for a single schedule.
std::string detectable_line(const ScoringPlan& plan);
// A result file's JSON as it is printed, with the differences of plan_json beside what the file holds.
std::string with_differences(const std::string& file, const ScoringPlan& plan);

}  // namespace allot::app
