// --task of every command that asks questions or grades replies; --grader and --allow-code-execution of those
// that grade.
#pragma once

#include <string>
#include <vector>

#include "app/cli/options.h"

namespace allot::app {

// Who grades replies where a task leaves that to a program, or to running them.
struct GraderOption {
  std::string command;
  bool allow_code_execution = false;

  // What evaluation::make_grader takes: the command, or evaluation::kCodeGrader; empty for neither. Throws
  // UsageError for both.
  std::string grader() const;
};

// `what` begins the option's help: "how questions are asked".
void declare_task_option(OptionSet* set, std::string* task, const std::string& what);

// `whose` begins the option's help: "program that grades replies".
void declare_grader_option(OptionSet* set, GraderOption* option, const std::string& whose);

// The words that say `grader` again: {"--grader", COMMAND} or {"--allow-code-execution"}; none for an empty
// one.
std::vector<std::string> grader_words(const std::string& grader);

}  // namespace allot::app
