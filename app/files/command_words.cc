#include "app/files/command_words.h"

#include <algorithm>

#include "base/error.h"
#include "base/json.h"
#include "evaluation/code_grader.h"

namespace allot::app {
namespace {

using Json = nlohmann::ordered_json;
using Pointer = Json::json_pointer;

// Each key of attention and generation is an option's name with '_' for '-'; an estimator's own parameters
// are a group within.
void add_group(const Json& conditions, const Pointer& place, std::vector<ConditionOption>* options) {
  for (const auto& [key, value] : conditions.at(place).items()) {
    if (value.is_object()) {
      add_group(conditions, place / key, options);
      continue;
    }
    std::string option = key;
    std::replace(option.begin(), option.end(), '_', '-');
    if (option != "stop") options->push_back({(place / key).to_string(), std::move(option)});
  }
}

}  // namespace

std::string shell_word(std::string_view word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./=:,+@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string_view::npos) return std::string(word);
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

std::vector<ConditionOption> condition_options(const Json& conditions) {
  std::vector<ConditionOption> options = {{"/task/name", "task"}, {"/task/prompt_style", "prompt-style"}};
  add_group(conditions, Pointer("/attention"), &options);
  add_group(conditions, Pointer("/generation"), &options);
  options.push_back({"/seed", "seed"});
  return options;
}

void CommandWords::add(const evaluation::Conditions& conditions, const ConditionPlaces& places,
                       std::span<const evaluation::Conditions> sources) {
  add("model", places.model);
  if (conditions.model.adapter) add("adapter", places.adapter);
  add("data", places.data);
  const auto& data = conditions.learned_on ? conditions.learned_on : conditions.measured_on;
  const evaluation::FieldNames usual;
  if (data && data->fields.question != usual.question) add("question-field", data->fields.question);
  if (data && data->fields.answer != usual.answer) add("answer-field", data->fields.answer);
  if (places.grader == evaluation::kCodeGrader)
    flag("allow-code-execution", true);
  else if (!places.grader.empty())
    add("grader", places.grader);

  const bool of_file = conditions.task.definition_sha256.has_value();
  const Json said = evaluation::to_json(conditions);
  const Json full = evaluation::full_json(conditions);
  std::vector<Json> taken_over;
  for (const evaluation::Conditions& source : sources) taken_over.push_back(evaluation::full_json(source));
  for (const auto& [field, option] : condition_options(full)) {
    const Json& value = full.at(Pointer(field));
    if (value.is_null())
      throw InvalidArgument(fmt::format("no command gives conditions of which {} is not known", field));
    if (of_file && field.starts_with("/task/")) {
      if (option == "task") add(option, places.task_file);
      continue;
    }
    const bool otherwise = std::ranges::any_of(taken_over, [&, at = Pointer(field)](const Json& source) {
      return source.contains(at) && !source.at(at).is_null() && source.at(at) != value;
    });
    // A parameter's default is what files mean without it, and not what a command takes by itself.
    const bool is_parameter = field.starts_with("/attention/parameters/");
    if (value.is_boolean()) {
      if (value || otherwise) list_.push_back("--" + option + (value ? "" : "=false"));
    } else if (said.contains(Pointer(field)) || otherwise || is_parameter) {
      add(option, value.is_string() ? value.get<std::string>() : value.dump());
    }
  }
}

std::string CommandWords::line() const {
  std::string line;
  for (const std::string& word : list_) line += (line.empty() ? "" : " ") + shell_word(word);
  return line;
}

}  // namespace allot::app
