#include "app/scoring/suite.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "app/cli/config_lines.h"
#include "app/cli/nearest_name.h"
#include "base/ascii.h"
#include "base/error.h"

namespace allot::app {
namespace {

const std::vector<std::string> kOfTasks = {
    "task",    "data",        "question-field", "answer-field",       "prompt-style",  "limit",
    "repeats", "temperature", "top-p",          "repetition-penalty", "max-new-tokens"};

// Names are those of directories, too, and some file systems take letters of either case for the same.
bool is_task_name(std::string_view name) {
  return !name.starts_with('.') && std::ranges::all_of(name, [](char c) {
    return is_letter(c) || is_digit(c) || c == '_' || c == '-' || c == '.';
  });
}

void add_option(const ConfigLine& line, SuiteTask* task, std::vector<std::string>* faults) {
  if (std::ranges::find(kOfTasks, line.name) == kOfTasks.end()) {
    const auto nearest = nearest_name(line.name, kOfTasks);
    faults->push_back(fmt::format("{}{} is no option of a section{}; those are {}", line.where, line.name,
                                  nearest ? fmt::format(", did you mean {}?", *nearest) : "",
                                  fmt::join(kOfTasks, ", ")));
  } else if (line.value.empty()) {
    faults->push_back(fmt::format("{}{} has no value", line.where, line.name));
  } else if (std::ranges::count(task->options, line.name, &std::pair<std::string, std::string>::first) > 0) {
    faults->push_back(fmt::format("{}{} is given twice in [{}]", line.where, line.name, task->name));
  } else {
    task->options.emplace_back(line.name, line.value);
  }
}

}  // namespace

std::vector<SuiteTask> read_suite(const std::filesystem::path& file) {
  std::vector<std::string> faults;
  std::vector<SuiteTask> tasks;
  for (const ConfigLine& line : read_config_lines(file, &faults)) {
    if (line.section.empty()) {
      faults.push_back(
          fmt::format("{}{} stands before the first [section]; options of all tasks are given to the "
                      "command, or in a file to --config",
                      line.where, line.name));
    } else if (!line.name.empty()) {
      add_option(line, &tasks.back(), &faults);
    } else {
      if (!is_task_name(line.section))
        faults.push_back(
            fmt::format("{}[{}]: names are letters, digits, '_', '-' and '.', which is not first", line.where,
                        line.section));
      const auto same = [&](const SuiteTask& task) { return to_lower(task.name) == to_lower(line.section); };
      if (std::ranges::any_of(tasks, same))
        faults.push_back(fmt::format("{}[{}] is there twice", line.where, line.section));
      tasks.push_back({.name = line.section, .where = line.where, .options = {}});
    }
  }
  if (tasks.empty()) faults.push_back(fmt::format("{} has no [section] of a task", file.string()));
  if (!faults.empty()) throw UsageError(fmt::format("{}", fmt::join(faults, "; ")));
  for (SuiteTask& task : tasks)
    if (std::ranges::count(task.options, "task", &std::pair<std::string, std::string>::first) == 0)
      task.options.emplace_back("task", task.name);
  return tasks;
}

std::vector<std::string> words_of_task(std::span<const std::string> arguments, const SuiteTask& task) {
  std::vector<std::string> words;
  const auto is_replaced = [&](std::string_view option) {
    return option == "suite" ||
           std::ranges::count(task.options, option, &std::pair<std::string, std::string>::first) > 0;
  };
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string_view word = arguments[i];
    if (word == "--dry-run") continue;
    if (!word.starts_with("--")) {
      words.emplace_back(word);
      continue;
    }
    const size_t equals = word.find('=');
    if (!is_replaced(word.substr(2, equals == word.npos ? equals : equals - 2)))
      words.emplace_back(word);
    else if (equals == word.npos)
      ++i;  // its value, since all of these have one
  }
  for (const auto& [option, value] : task.options) words.push_back(fmt::format("--{}={}", option, value));
  return words;
}

}  // namespace allot::app
