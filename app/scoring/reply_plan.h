// What the commands that let a model reply are about to do: the model, the schedules, the prompts' style and
// the conditions. eval, verify and ablate put questions to it (scoring_plan.h), generate and serve whatever
// they are given. Made from options and from the schedule files these name, without loading the model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
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
#include "model/chat_template.h"

namespace allot::app {

// The prompt style of texts that go to the tokenizer as they are.
inline constexpr const char* kNoStyle = "none";
// The one of prompts that are messages of a user and no task's questions.
inline constexpr const char* kMessageStyle = "message";

struct ReplyOptions {
  std::filesystem::path model;
  std::optional<std::filesystem::path> adapter;
  std::string task = "gsm8k";
  std::string prompt_style = "auto";
  kernels::AttentionMethod attention = kernels::usual_method();
  GenerationOptions generation;
  int64_t seed = 0;
  std::string device = "cpu";
  int32_t threads = 0;
  int32_t max_sequences = 256;
  std::filesystem::path executed_out;  // empty: what layers execute is not counted
  // Of the command, not an option. What is counted for executed_out is of one schedule, without bands.
  Bands bands = Bands::kRefused;
};

// Whether a command's prompts are always a task's, may have no style, or never have one.
enum class PromptStyles { kOfTask, kOfTaskOrNone, kNone };

// Declares the options above but executed_out; --model is required. With kNone there are no task and no
// prompt style to choose.
void declare_reply_options(OptionSet* set, ReplyOptions* options, PromptStyles styles);

// Declares --executed-out, for commands that run one schedule.
void declare_executed_out(OptionSet* set, ReplyOptions* options);

// Conditions that the options are to follow, and where they stand: a schedule file or a run.
struct ConditionsSource {
  std::string place;
  evaluation::Conditions conditions;
};

// Those of a run whose report is to show a result. Throws NotFound where `run` is no run directory.
ConditionsSource conditions_of_run(const std::filesystem::path& run);

// Gives every option of `set` that neither flag nor config file has set the value that the sources say: task,
// prompt style, attention and generation; under another task than the source's, which the command names, not
// what the task decides: prompt style and generation but for dtype, weights and keys. What a source does not
// know it does not set. Throws Mismatch naming the fields in which the sources contradict each other and no
// option decides.
void adopt(std::span<const ConditionsSource> sources, OptionSet* set);

struct ReplyPlan {
  std::vector<NamedSchedule> schedules;
  std::unique_ptr<evaluation::Task> task;  // none where prompts have no style
  evaluation::Conditions conditions;
  std::vector<ConditionsSource> sources;  // that the options follow
};

// Reads the model's identity and the schedules, adopts the conditions of `run` and of the schedule files
// among the arguments, and sets the fields of `options` to what follows. Says on stderr that the model's
// config.json carries a schedule which is none of these. Throws the errors of the readers, and Mismatch for
// schedules of another model or of contradicting conditions, and as model::require_formats does for a device
// that has not the weights or keys of the conditions.
ReplyPlan plan_replies(std::span<const std::string> schedules, const std::optional<ConditionsSource>& run,
                       ReplyOptions* options, OptionSet* set);

// What applies where no schedule is named: the one that the model directory carries, else dense attention.
std::string usual_schedule(const std::filesystem::path& model);

// How prompts of the style become tokens.
model::PromptForm prompt_form(const std::string& prompt_style);

// What is about to run, for people: a line for the schedule and one for the conditions.
std::string describe(const ReplyPlan& plan);

}  // namespace allot::app
