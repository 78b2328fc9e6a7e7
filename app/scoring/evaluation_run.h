// The directory of an evaluation that goes on where it was stopped, whatever stopped it:
//   evaluation.json  what is asked: conditions and schedules
//   replies.jsonl    the answers as they come (evaluation/answers.h)
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "app/scoring/scoring_plan.h"
#include "evaluation/answers.h"

namespace allot::app {

class EvaluationRun {
 public:
  // Begins an evaluation in `directory`, or opens the one that is there. Schedules, repeats and questions may
  // have been added since; anything else that decides the answers must be as it was. With `regrade` the
  // task's version and file may be other ones: all replies are graded again by the task of `plan`, before
  // anything says that they are of it. Throws Mismatch naming what differs, CorruptFile, StorageError, and
  // what grading throws.
  EvaluationRun(std::filesystem::path directory, const ScoringPlan& plan, bool regrade);

  const std::map<evaluation::AnswerKey, evaluation::Answer>& answers() const { return journal_.answers(); }
  void add(const evaluation::Answer& answer) { journal_.append(answer); }
  void sync() { journal_.sync(); }  // what was added survives the death of the machine

 private:
  void grade_again(const ScoringPlan& plan);

  evaluation::AnswerJournal journal_;
};

}  // namespace allot::app
