// HumanEval as published: its own solutions pass, and what is not one fails.
#include <gtest/gtest.h>

#include <filesystem>

#include "evaluation/code_grader.h"
#include "evaluation/task.h"

namespace allot::evaluation {
namespace {

const std::filesystem::path kFile =
    std::filesystem::path(ALLOT_SOURCE_DIR) / "../shared/data/humaneval/HumanEval.jsonl";

std::unique_ptr<Task> shipped(const std::string& name) {
  return make_graded_task({name, std::string(kFileStyle), read_task_definition(name)}, make_code_grader());
}

TEST(HumanEvalData, PublishedSolutionsPassAndOthersFail) {
  if (!std::filesystem::exists(kFile))
    GTEST_SKIP() << "HumanEval.jsonl is not at " << kFile << "; see evaluation/humaneval/README.md";
  const auto task = shipped("humaneval"), chat = shipped("humaneval-chat");
  const Dataset data = task->load(kFile, {.question = "prompt", .answer = "canonical_solution"});
  ASSERT_EQ(data.questions.size(), 164u);
  for (const Question& question : data.questions) {
    // A gold answer has no space at its ends, and every solution begins with an indentation of four.
    const std::string solution = "    " + question.answer + "\n";
    EXPECT_EQ(task->grade(question, solution).score, 1) << question.id;
    EXPECT_EQ(task->grade(question, solution + "\ndef unfinished(").score, 1) << question.id;
    EXPECT_EQ(chat->grade(question, "```python\n" + question.text + solution + "\n```\nDone.").score, 1)
        << question.id;
    EXPECT_EQ(task->grade(question, "    return None\n").score, 0) << question.id;
    EXPECT_EQ(task->grade(question, solution.substr(0, solution.size() / 3)).score, 0) << question.id;
    EXPECT_EQ(chat->grade(question, "```python\n" + question.text + "    pass\n```").score, 0) << question.id;
  }
}

}  // namespace
}  // namespace allot::evaluation
