#include "app/scoring/scoring_plan.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <map>

#include "app/cli/version.h"
#include "app/run/adapter_options.h"
#include "base/error.h"
#include "base/json.h"
#include "model/tokenizer.h"
#include "wire/messages.pb.h"
#include "wire/spec.h"
#include "worker/spec_conditions.h"

namespace allot::app {
namespace {

using Json = nlohmann::ordered_json;

// A field of the conditions, as a JSON pointer, and the option that sets it. The task's version and the stop
// rule follow from the task.
struct Adoptable {
  Json::json_pointer field;
  std::string option;
};

// Task and prompt style, and all that `conditions` say of attention and generation: each key there is an
// option's name with '_' for '-'.
std::vector<Adoptable> adoptable(const Json& conditions) {
  std::vector<Adoptable> fields = {{Json::json_pointer("/task/name"), "task"},
                                   {Json::json_pointer("/task/prompt_style"), "prompt-style"}};
  const auto add = [&](const auto& self, const Json::json_pointer& place) -> void {
    for (const auto& [key, value] : conditions.at(place).items()) {
      if (value.is_object()) {
        self(self, place / key);  // an estimator's own parameters
        continue;
      }
      std::string option = key;
      std::replace(option.begin(), option.end(), '_', '-');
      fields.push_back({place / key, std::move(option)});
    }
  };
  add(add, Json::json_pointer("/attention"));
  add(add, Json::json_pointer("/generation"));
  return fields;
}

std::string option_text(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

evaluation::PromptStyle style_of(const ScoringOptions& options) {
  if (options.prompt_style != "auto") return evaluation::parse_prompt_style(options.prompt_style);
  return evaluation::prompt_style_for(model::Tokenizer::load(options.model).chat_template());
}

}  // namespace

void declare_scoring_options(OptionSet* set, ScoringOptions* options) {
  constexpr int64_t kMany = 1'000'000'000;
  std::vector<std::string> styles = evaluation::prompt_style_names();
  styles.insert(styles.begin(), "auto");
  set->path("model", &options->model, "Hugging Face model directory");
  declare_adapter_option(set, &options->adapter);
  set->path("data", &options->data, "questions, JSONL with 'question' and 'answer'");
  set->choice("task", &options->task, evaluation::task_names(), "how questions are asked and answers graded");
  set->choice("prompt-style", &options->prompt_style, styles,
              "prompt style; auto goes by the schedule file, else by the model's chat template");
  set->integer("limit", &options->limit, 0, kMany, "N", "score the first N questions; 0 for all");
  declare_attention_options(set, &options->attention, EstimatorChoice::kAny);
  declare_generation_options(set, &options->generation, options->task);
  set->integer("seed", &options->seed, 0, std::numeric_limits<uint32_t>::max(), "N", "of every random draw");
  set->device(&options->device);
  set->integer("threads", &options->threads, 0, 4096, "N", "threads of the model; 0 takes all cores");
  set->integer("max-sequences", &options->max_sequences, 1, 65536, "N", "replies decoded together");
  set->path("details", &options->details, "write every reply and its verdict to this JSONL file");
  set->require("model");
  set->require("data");
}

NamedSchedule even_spread(const NamedSchedule& schedule) {
  if (!schedule.schedule || sampled_layers(schedule.schedule->samples) == 0)
    throw UsageError("dense attention has no total to spread evenly; name the schedule to compare it with");
  return {.label = "uniform", .schedule = policy::even_schedule(*schedule.schedule), .file = std::nullopt};
}

ConditionsSource conditions_of_run(const std::filesystem::path& run) {
  const std::filesystem::path spec = run / "spec.json";
  if (!std::filesystem::exists(spec))
    throw NotFound(
        "--run " + run.string() +
        " is no run directory: it has no spec.json; give the directory of a run, or use --out FILE");
  return {.place = spec.string(), .conditions = worker::conditions_of(wire::read_spec(spec))};
}

void adopt(std::span<const ConditionsSource> sources, OptionSet* set) {
  std::vector<std::string> contradictions;
  std::vector<Json> conditions;
  std::vector<Adoptable> fields;
  for (const ConditionsSource& source : sources) {
    conditions.push_back(evaluation::full_json(source.conditions));
    for (Adoptable& found : adoptable(conditions.back())) {
      const auto same = [&](const Adoptable& known) { return known.option == found.option; };
      if (std::none_of(fields.begin(), fields.end(), same)) fields.push_back(std::move(found));
    }
  }
  for (const auto& [field, option] : fields) {
    if (!set->has(option.c_str())) continue;  // the stop rule follows from the task
    if (set->given(option.c_str()) && !(option == "prompt-style" && set->value(option.c_str()) == "auto"))
      continue;
    const ConditionsSource* first = nullptr;
    Json adopted;
    for (size_t i = 0; i < sources.size(); ++i) {
      const ConditionsSource& source = sources[i];
      const Json value = conditions[i].value(field, Json());
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

ScoringPlan plan_scoring(std::span<const std::string> schedules, const std::optional<ConditionsSource>& run,
                         ScoringOptions* options, OptionSet* set) {
  ScoringPlan plan;
  evaluation::Conditions& conditions = plan.conditions;
  conditions.model = model::identify_model(options->model, {.adapter = options->adapter});
  if (run) plan.sources.push_back(*run);
  for (const std::string& argument : schedules) {
    plan.schedules.push_back(parse_schedule_argument(argument, conditions.model));
    if (const auto& file = plan.schedules.back().file) plan.sources.push_back({argument, file->conditions});
  }
  adopt(plan.sources, set);

  const evaluation::PromptStyle style = style_of(*options);
  plan.task = evaluation::make_task(options->task, style);
  plan.dataset = plan.task->load(options->data);
  const int64_t questions = std::ssize(plan.dataset.questions);
  if (options->limit > questions)
    throw UsageError(fmt::format("--limit {} is more than the {} questions of {}", options->limit, questions,
                                 options->data.string()));
  conditions.task = {.name = std::string(plan.task->name()),
                     .version = plan.task->version(),
                     .prompt_style = std::string(evaluation::name(style))};
  conditions.measured_on = {.sha256 = plan.dataset.sha256,
                            .questions = options->limit > 0 ? options->limit : questions};
  check_unit(options->attention);
  conditions.attention = options->attention;
  conditions.generation = resolve(options->generation, *plan.task);
  conditions.seed = static_cast<uint32_t>(options->seed);

  options->prompt_style = conditions.task.prompt_style;
  options->generation = options_of(conditions.generation);
  plan.options = *options;
  return plan;
}

Json plan_json(const ScoringPlan& plan) {
  Json differences = Json::array();
  for (const ConditionsSource& source : plan.sources) {
    for (const evaluation::Difference& difference :
         evaluation::decisive_differences(source.conditions, plan.conditions)) {
      differences.push_back({{"field", difference.field},
                             {"schedule", Json::parse(difference.first)},
                             {"here", Json::parse(difference.second)},
                             {"file", source.place}});
    }
  }
  return {{"tool_version", version()},
          {"conditions", evaluation::to_json(plan.conditions)},
          {"differences", std::move(differences)},
          {"data", plan.options.data.string()},
          {"device", plan.options.device}};
}

std::string describe(const ScoringPlan& plan) {
  std::string text =
      fmt::format("conditions: {}; {} questions of {}\n", evaluation::describe(plan.conditions),
                  plan.questions(), plan.options.data.string()) +
      unit_line(plan.conditions.attention, plan.conditions.model);
  for (const ConditionsSource& source : plan.sources) {
    const auto differences = evaluation::decisive_differences(source.conditions, plan.conditions);
    if (differences.empty()) {
      text += fmt::format("  as in {}{}\n", source.place,
                          source.conditions.unknown.empty() ? "" : ", as far as it says");
    }
    for (const evaluation::Difference& difference : differences) {
      text += fmt::format("  {} is {} here and {} in {}\n", difference.field, difference.second,
                          difference.first, source.place);
    }
  }
  return text;
}

}  // namespace allot::app
