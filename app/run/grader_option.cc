#include "app/run/grader_option.h"

#include "base/error.h"
#include "evaluation/code_grader.h"
#include "evaluation/task.h"

namespace allot::app {

std::string GraderOption::grader() const {
  if (!allow_code_execution) return command;
  if (!command.empty())
    throw UsageError(
        "--grader and --allow-code-execution exclude each other: a task asks for one of the two");
  return std::string(evaluation::kCodeGrader);
}

void declare_task_option(OptionSet* set, std::string* task, const std::string& what) {
  set->text(
      "task", task, "NAME|FILE",
      (what + ": gsm8k, one that allot brings as a file (humaneval, mmlu-llama, ruler-qa, …), or a task file "
              "(docs/tasks.md)")
          .c_str());
  set->suggest("task", evaluation::all_task_names());
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
