// The whole of GSM8K as published. Values alone, so that the release build, which is ten times as fast, runs
// it.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/evaluation/gold_scores.h"

namespace allot::evaluation {
namespace {

TEST(Gsm8kData, GoldSolutionsOfThePublishedFilesAreAllCorrect) {
  const std::filesystem::path folder = std::filesystem::path(ALLOT_SOURCE_DIR) / "../shared/data/gsm8k";
  if (!std::filesystem::exists(folder / "test.jsonl"))
    GTEST_SKIP() << "GSM8K's test.jsonl and train.jsonl are not in " << folder
                 << "; see evaluation/gsm8k/README.md";
  expect_gold_scores_full(folder / "test.jsonl", 1319);
  expect_gold_scores_full(folder / "train.jsonl", 7473);
}

}  // namespace
}  // namespace allot::evaluation
