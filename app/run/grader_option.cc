#include "app/run/grader_option.h"

#include "base/error.h"
#include "evaluation/code_grader.h"

namespace allot::app {

std::string GraderOption::grader() const {
  if (!allow_code_execution) return command;
  if (!command.empty())
    throw UsageError(
        "--grader and --allow-code-execution exclude each other: a task asks for one of the two");
  return std::string(evaluation::kCodeGrader);
}

void declare_grader_option(OptionSet* set, GraderOption* option, const std::string& whose) {
  set->text("grader", &option->command, "COMMAND",
            (whose + ", for a task file that asks for one; a shell runs it").c_str());
  set->flag(
      "allow-code-execution", &option->allow_code_execution,
      "let tasks that grade by running the model's Python code (humaneval) run it, in a sandbox that keeps it "
      "from writing and from the network, not from reading your files");
}

std::vector<std::string> grader_words(const std::string& grader) {
  if (grader.empty()) return {};
  if (grader == evaluation::kCodeGrader) return {"--allow-code-execution"};
  return {"--grader", grader};
}

}  // namespace allot::app
