// allot grade: grades predictions made elsewhere, line by line.
#include <iostream>
#include <string>

#include "app/cli/command.h"
#include "app/cli/options.h"
#include "app/run/grader_option.h"
#include "base/error.h"
#include "base/json.h"
#include "evaluation/grader_process.h"
#include "evaluation/json_fields.h"
#include "evaluation/task.h"

namespace allot::app {
namespace {

// A field that is a text, or a number as written.
std::string text_field(const nlohmann::ordered_json& row, const char* field) {
  const auto found = row.find(field);
  if (found == row.end())
    throw InvalidArgument(std::string("no field \"") + field +
                          "\"; expected {\"prediction\": text, \"answer\": text}");
  if (found->is_number()) return found->dump();
  if (!found->is_string())
    throw InvalidArgument(std::string("field \"") + field + "\" is of type " + found->type_name() +
                          ", expected a text or a number");
  return found->get<std::string>();
}

// The answer, or where the task takes several their list, as Task::gold() reads them.
std::string answer_of(const nlohmann::ordered_json& row, const evaluation::Task& task) {
  const auto found = row.find("answer");
  if (!task.several_answers() || found == row.end() || !found->is_array()) return text_field(row, "answer");
  const auto lines = evaluation::joined_lines(*found, /*numbers=*/true);
  if (!lines)
    throw InvalidArgument("field \"answer\" is the list " + evaluation::shown(*found) +
                          ", expected texts that are not blank, or numbers");
  return *lines;
}

nlohmann::ordered_json read_row(const std::string& line) {
  nlohmann::ordered_json row = nlohmann::ordered_json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!row.is_object())
    throw InvalidArgument("not a JSON object; expected {\"prediction\": text, \"answer\": text}");
  return row;
}

// The score of a row's prediction: 0 to 1.
double grade_row(const nlohmann::ordered_json& row, const evaluation::Task& task) {
  const std::string prediction = text_field(row, "prediction");
  evaluation::Question question = task.gold(answer_of(row, task));
  if (row.contains("question")) question.text = text_field(row, "question");
  return task.equal(question, prediction) ? 1 : task.grade(question, prediction).score;
}

}  // namespace

int run_grade(std::span<const std::string> arguments) {
  std::string task_name = "gsm8k";
  std::string style = "boxed";
  GraderOption grading;
  bool keep = false;
  OptionSet set(
      "grade",
      "grade JSON lines {\"prediction\", \"answer\"} on stdin; each gives a line {\"correct\": 0 or 1}; a "
      "prediction is a whole reply or a bare answer, an answer is bare or a worked solution; tasks of several "
      "answers, which take a list of them, and those that a program grades add the \"score\"",
      "echo '{\"prediction\": \"So it is \\\\boxed{18}.\", \"answer\": \"18\"}' | allot grade --task gsm8k");
  declare_task_option(&set, &task_name, "task whose rules decide what is right");
  declare_grader_option(&set, &grading, "program that grades replies");
  set.choice("prompt-style", &style, evaluation::prompt_style_names(),
             "prompt style of the replies, which decides where the answer is looked for");
  set.flag(
      "keep", &keep,
      "write each line with its grade, for allot compare, which tells questions by the field \"question\"");
  if (set.parse(arguments) == OptionSet::Parsed::kDone) return 0;

  const std::string grader = grading.grader();
  const std::string definition = evaluation::read_task_definition(task_name);
  const auto task =
      evaluation::make_graded_task({task_name, style, definition}, evaluation::make_grader(grader));
  evaluation::require_grader(*task, grader);
  std::string line;
  for (int64_t number = 1; std::getline(std::cin, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    try {
      nlohmann::ordered_json row = read_row(line);
      const double score = grade_row(row, *task);
      if (!keep) row = nlohmann::ordered_json::object();
      row["correct"] = score == 1 ? 1 : 0;
      if (keep || task->needs_grader() || task->several_answers()) row["score"] = score;
      std::cout << row.dump() << '\n';
    } catch (const InvalidArgument& error) {
      std::cout.flush();
      throw InvalidArgument("line " + std::to_string(number) + " of stdin: " + error.what());
    } catch (const evaluation::GradingFailure& error) {
      std::cout.flush();
      throw evaluation::GradingFailure("line " + std::to_string(number) + " of stdin: " + error.what());
    }
  }
  return 0;
}

}  // namespace allot::app
