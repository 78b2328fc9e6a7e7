// The interface of a program that grades replies for a task from a file. The real one is a child process
// (grader_process.h); tests use a function.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "evaluation/task.h"

namespace allot::evaluation {

// A reply could not be graded: the grader hangs, ended or answered something else than a score, or a regular
// expression reached its limit. The message names the question. The reply has then no score, which is not a
// score of 0.
class GradingFailure : public Error {
 public:
  using Error::Error;
};

class Grader {
 public:
  virtual ~Grader() = default;
  // `extracted` is what the task's own extraction found in the reply. Throws GradingFailure.
  virtual Grade grade(const Question& question, std::string_view reply,
                      const std::optional<std::string>& extracted) = 0;
};

// As make_task(), with the grader of a task that needs one; others do without it. It may be null where
// nothing is graded.
std::unique_ptr<Task> make_graded_task(const TaskSource& source, std::unique_ptr<Grader> grader);

}  // namespace allot::evaluation
