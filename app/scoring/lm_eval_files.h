// What eval found in the files of lm-evaluation-harness (tried with lm_eval 0.4.13), for tools that read
// these:
//   DIR/SCHEDULE/results_TIME.json        accuracy and standard error of the task
//   DIR/SCHEDULE/samples_TASK_TIME.jsonl  prompt, replies and score of each question
#pragma once

#include <filesystem>
#include <span>

#include "app/scoring/scoring.h"

namespace allot::app {

// `answers` are those of the score's schedule, all repeats of all questions. Characters of the schedule's
// name other than letters, digits, '-', '_' and '.' become '_'. Throws StorageError.
void write_lm_eval_files(const std::filesystem::path& directory, const ScoringPlan& plan, const Score& score,
                         std::span<const evaluation::Answer> answers);

}  // namespace allot::app
