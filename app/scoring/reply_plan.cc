#include "app/scoring/reply_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

#include "app/files/command_words.h"
#include "app/run/grader_option.h"
#include "app/run/model_options.h"
#include "base/device.h"
#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/sha256.h"
#include "model/storage_formats.h"
#include "model/tokenizer.h"
#include "wire/messages.pb.h"
#include "wire/spec.h"
#include "worker/spec_conditions.h"

namespace allot::app {
namespace {

using Json = nlohmann::ordered_json;

std::string option_text(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

bool has_task(const ReplyOptions& options) {
  return options.prompt_style != kNoStyle && options.prompt_style != kMessageStyle;
}

std::string resolved_style(const ReplyOptions& options) {
  if (options.prompt_style != "auto") return options.prompt_style;
  return std::string(evaluation::name(usual_prompt_style(model::Tokenizer::load(options.model))));
}

bool of_task_file(const ConditionsSource& source) {
  return source.conditions.task.definition_sha256.has_value();
}

// What was measured with a task file is scored with one, which only the caller can name.
void check_task_file(std::span<const ConditionsSource> sources, const OptionSet& set) {
  if (set.given("task")) return;
  const ConditionsSource& source = *std::ranges::find_if(sources, of_task_file);
  const evaluation::TaskIdentity& task = source.conditions.task;
  throw UsageError(
      fmt::format("{} was measured with the task file '{}' (SHA-256 {}); give it as --task FILE, or "
                  "another task",
                  source.place, task.name, *task.definition_sha256));
}

// Whether the source was measured with the task that the command names, or the command names none.
bool is_of_its_task(const ConditionsSource& source, const OptionSet& set) {
  if (!set.has("task") || !set.given("task")) return true;
  const std::string named = set.value("task");
  const evaluation::TaskIdentity& task = source.conditions.task;
  const std::string definition = evaluation::read_task_definition(named);
  if (task.definition_sha256) return !definition.empty() && sha256_hex(definition) == *task.definition_sha256;
  return definition.empty() && (task.name.empty() || task.name == named);
}

// What a task decides where nothing is said: how it asks, and how replies to it are generated.
bool follows_from_task(const ConditionOption& one) {
  return one.option == "prompt-style" ||
         (one.field.starts_with("/generation/") && one.field != "/generation/dtype" &&
          one.field != "/generation/weights" && one.field != "/generation/keys");
}

}  // namespace

void declare_executed_out(OptionSet* set, ReplyOptions* options) {
  set->path(
      "executed-out", &options->executed_out,
      "count what every layer executes, with --device cpu the value rows that the kernels read, too, and "
      "write it to this file, for allot verify --executed; with one schedule");
}

void declare_reply_options(OptionSet* set, ReplyOptions* options, PromptStyles allowed) {
  std::vector<std::string> styles = evaluation::prompt_style_names();
  styles.insert(styles.begin(), "auto");
  if (allowed == PromptStyles::kOfTaskOrNone) styles.insert(styles.end(), {kMessageStyle, kNoStyle});
  declare_model_option(
      set, &options->model,
      "Hugging Face model: a directory, or org/name[@revision] in the local cache of the hub");
  declare_adapter_option(set, &options->adapter);
  if (allowed == PromptStyles::kNone) {
    options->prompt_style = kNoStyle;
  } else {
    declare_task_option(set, &options->task, "how questions are asked and answers graded");
    set->choice(
        "prompt-style", &options->prompt_style, styles,
        allowed == PromptStyles::kOfTask
            ? "prompt style; auto takes the schedule file's, else chat for models with a chat template "
              "of their own, and plain"
            : "prompt style; auto takes the schedule file's, else chat for models with a chat template "
              "of their own, and plain; message has the prompt alone in the chat template, none the "
              "prompt as it is");
  }
  declare_attention_options(set, &options->attention, EstimatorChoice::kAny);
  declare_generation_options(set, &options->generation, options->task);
  set->integer(
      "seed", &options->seed, 0, std::numeric_limits<uint32_t>::max(), "N",
      "seed of all random draws; not taken over from a schedule file, since its schedule is to do as well with "
      "other draws than those it was learned with");
  set->device(&options->device);
  set->integer("threads", &options->threads, 0, 4096, "N", "threads of the model; 0 takes all cores");
  set->integer("max-sequences", &options->max_sequences, 1, 65536, "N", "replies decoded together");
  set->require("model");
}

ConditionsSource conditions_of_run(const std::filesystem::path& run) {
  const std::filesystem::path spec = run / "spec.json";
  if (!std::filesystem::exists(spec))
    throw NotFound(
        "--run " + run.string() +
        " is no run directory: it has no spec.json; give the directory of a run, or use --out FILE");
  const wire::RunSpec learned = wire::read_spec(spec);
  if (learned.has_evaluation())
    throw Mismatch(
        "--run " + run.string() +
        " holds an evaluation, which learned nothing; give the directory of a run of tune or aggregator");
  return {.place = spec.string(), .conditions = worker::conditions_of(learned)};
}

void adopt(std::span<const ConditionsSource> sources, OptionSet* set) {
  std::vector<std::string> contradictions;
  std::vector<Json> conditions;
  std::vector<ConditionOption> fields;
  std::vector<bool> of_its_task;
  for (const ConditionsSource& source : sources) {
    of_its_task.push_back(is_of_its_task(source, *set));
    conditions.push_back(evaluation::full_json(source.conditions));
    for (ConditionOption& found : condition_options(conditions.back())) {
      const auto same = [&](const ConditionOption& known) { return known.option == found.option; };
      if (std::none_of(fields.begin(), fields.end(), same)) fields.push_back(std::move(found));
    }
  }
  for (const ConditionOption& one : fields) {
    const auto& [field, option] = one;
    // Numbers of different seeds may be compared, and a schedule is to do as well with any draws.
    if (option == "seed" || !set->has(option.c_str())) continue;
    // A task from a file is not found by its name, nor has it a style to choose.
    const bool of_task = option == "task" || option == "prompt-style";
    if (of_task && std::ranges::any_of(sources, of_task_file)) {
      check_task_file(sources, *set);
      continue;
    }
    if (set->given(option.c_str()) && !(option == "prompt-style" && set->value(option.c_str()) == "auto"))
      continue;
    const ConditionsSource* first = nullptr;
    Json adopted;
    for (size_t i = 0; i < sources.size(); ++i) {
      const ConditionsSource& source = sources[i];
      if (!of_its_task[i] && follows_from_task(one)) continue;
      const Json value = conditions[i].value(Json::json_pointer(field), Json());
      if (value.is_null() || value == adopted) continue;
      if (first != nullptr) {
        contradictions.push_back(fmt::format("--{} is {} in {} and {} in {}", option, option_text(adopted),
                                             first->place, option_text(value), source.place));
        break;
      }
      first = &source;
      adopted = value;
    }
    if (first != nullptr) set->fill(option.c_str(), option_text(adopted));
  }
  if (contradictions.empty()) return;
  throw Mismatch(
      fmt::format("the schedules were measured under different conditions: {}; give these options to score "
                  "all under the same",
                  fmt::join(contradictions, "; ")));
}

std::string usual_schedule(const std::filesystem::path& model) {
  return read_own_schedule(model) ? kOwnSchedule : "dense";
}

ReplyPlan plan_replies(std::span<const std::string> schedules, const std::optional<ConditionsSource>& run,
                       ReplyOptions* options, OptionSet* set) {
  ReplyPlan plan;
  evaluation::Conditions& conditions = plan.conditions;
  conditions.model = model::identify_model(options->model, {.adapter = options->adapter});
  if (run) plan.sources.push_back(*run);
  const Bands bands = options->executed_out.empty() ? options->bands : Bands::kRefused;
  for (const std::string& argument : schedules) {
    plan.schedules.push_back(parse_schedule_argument(argument, conditions.model, options->model, bands));
    const auto& file = plan.schedules.back().file;
    if (!file) continue;
    const std::string place = argument == kOwnSchedule ? (options->model / "config.json").string() : argument;
    plan.sources.push_back({place, file->conditions});
  }
  if (!options->executed_out.empty() && (plan.schedules.size() != 1 || !plan.schedules.front().schedule))
    throw UsageError(
        fmt::format("--executed-out keeps what one schedule executes, --schedule is {}; give one",
                    fmt::join(schedules, ", ")));
  if (std::ranges::find(schedules, kOwnSchedule) == schedules.end())
    note_unread_schedule(options->model, fmt::format("--schedule {} runs it", kOwnSchedule));
  adopt(plan.sources, set);

  const std::string definition = evaluation::read_task_definition(options->task);
  if (definition.empty()) {
    options->prompt_style = resolved_style(*options);
  } else if (options->prompt_style != "auto" && has_task(*options)) {
    throw UsageError(fmt::format("--prompt-style {} with --task {}: a task file writes its prompts itself",
                                 options->prompt_style, options->task));
  }
  conditions.task = {.name = options->task, .version = 1, .prompt_style = options->prompt_style};
  if (!has_task(*options)) {
    const std::string style(evaluation::name(evaluation::PromptStyle::kPlain));
    const auto defaults = evaluation::make_task({options->task, style, definition});
    conditions.generation = resolve(options->generation, *defaults);
    conditions.generation.stop = evaluation::StopRule::kEos;
  } else {
    plan.task = evaluation::make_task({options->task, options->prompt_style, definition});
    conditions.task = evaluation::identity_of(*plan.task, options->prompt_style);
    conditions.generation = resolve(options->generation, *plan.task);
  }
  check_unit(options->attention);
  conditions.attention = options->attention;
  kernels::keep_own_parameters(&conditions.attention);
  conditions.seed = static_cast<uint32_t>(options->seed);
  options->generation = options_of(conditions.generation);
  model::require_formats(conditions.generation.weights, conditions.generation.keys,
                         parse_device(options->device));
  return plan;
}

model::PromptForm prompt_form(const std::string& prompt_style) {
  return prompt_style == kMessageStyle || evaluation::asks_by_message(prompt_style)
             ? model::PromptForm::kMessage
             : model::PromptForm::kText;
}

std::string describe(const ReplyPlan& plan) {
  std::string text;
  for (const NamedSchedule& named : plan.schedules) {
    text += "schedule: " + named.label;
    if (named.label == kOwnSchedule && named.file)
      text += fmt::format(" (the model's config.json: {})", describe_own(*named.file));
    else if (named.schedule)
      text += fmt::format(" ({} {})", named.schedule->total(), kernels::name(plan.conditions.attention.unit));
    if (named.has_bands())
      for (const auto& [most, schedule] : named.file->bands)
        text += fmt::format(", {} for prompts of at most {} tokens", schedule.total(), most);
    text += '\n';
  }
  if (plan.task) return text + fmt::format("conditions: {}\n", evaluation::describe(plan.conditions));
  return text + fmt::format("conditions: prompts as they are given; {}; {}; seed {}\n",
                            kernels::describe(plan.conditions.attention),
                            evaluation::describe(plan.conditions.generation), plan.conditions.seed);
}

}  // namespace allot::app
