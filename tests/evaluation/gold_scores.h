// Whether the grader agrees with the solutions that a data file brings.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <filesystem>
#include <memory>

#include "evaluation/task.h"

namespace allot::evaluation {

// The gold solutions of a file of GSM8K, graded as replies under every prompt style.
inline void expect_gold_scores_full(const std::filesystem::path& file, size_t questions) {
  for (const PromptStyle style : {PromptStyle::kBoxed, PromptStyle::kLlamaChat, PromptStyle::kDeepseekChat,
                                  PromptStyle::kChat, PromptStyle::kPlain}) {
    const std::unique_ptr<Task> task = make_task("gsm8k", style);
    const Dataset dataset = task->load(file);
    EXPECT_EQ(dataset.questions.size(), questions);
    size_t correct = 0;
    for (const Question& question : dataset.questions) {
      correct += task->grade(question, question.solution).score == 1;
      EXPECT_TRUE(task->equal(question, question.answer)) << question.answer;
    }
    EXPECT_EQ(correct, questions) << name(style);
  }
}

}  // namespace allot::evaluation
