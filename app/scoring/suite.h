// Several tasks for one evaluation: a file with a section for each, of the options that are a task's own.
//   [arithmetic]              the name of the task in results
//   task = gsm8k              the section's name where it is not given
//   data = gsm8k/test.jsonl
//   limit = 200
// What a section says holds for its task, also where the command says otherwise; all else is the command's.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace allot::app {

struct SuiteTask {
  std::string name;   // letters, digits, '_', '-' and '.'; unlike all others, whatever the case of letters
  std::string where;  // "FILE:LINE: ", of the section
  std::vector<std::pair<std::string, std::string>> options;  // with "task"
};

// Throws UsageError listing everything that is wrong, with file and line, and what read_file throws.
std::vector<SuiteTask> read_suite(const std::filesystem::path& file);

// The words of a command line that does for `task` alone what `arguments` do for the suite: without
// --suite and --dry-run, with the section's options in place of those of the same name.
std::vector<std::string> words_of_task(std::span<const std::string> arguments, const SuiteTask& task);

}  // namespace allot::app
