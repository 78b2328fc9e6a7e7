// Hand-made replies to questions with four choices, for tests of tasks that come with allot.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "evaluation/task.h"

namespace allot::evaluation {

inline std::unique_ptr<Task> shipped(const std::string& name) {
  return make_task({name, std::string(kFileStyle), read_task_definition(name)});
}

// A reply, and the letter that a task finds in it; 0 where it finds none.
struct LetterCase {
  std::string reply;
  char letter;
};

// Each is graded against all four letters.
inline void expect_letters(const std::string& task_name, const std::vector<LetterCase>& cases) {
  const auto task = shipped(task_name);
  for (const auto& [reply, letter] : cases) {
    for (const char gold : {'A', 'B', 'C', 'D'}) {
      const Question question = task->gold(std::string(1, gold));
      EXPECT_EQ(task->grade(question, reply).score, gold == letter ? 1 : 0) << reply << " against " << gold;
    }
    EXPECT_EQ(task->grade(task->gold("A"), reply).extracted, letter != 0) << reply;
  }
}

}  // namespace allot::evaluation
