// A small run of `allot tune` with a worker that simulates its model, for the tests of the command.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "aggregator/run_data.h"
#include "base/file.h"
#include "tests/aggregator/episode_rows.h"
#include "tests/app/run_command.h"
#include "tests/app/small_model.h"

namespace allot::app {

class Tune : public ::testing::Test {
 protected:
  Tune()
      : directory_(fresh_directory()),
        small_(write_small_model(directory_)),
        run_(directory_ / "run"),
        hold_(directory_ / "hold") {
    ::setenv("ALLOT_SIMULATED_HOLD", hold_.c_str(), 1);
    ::unsetenv("ALLOT_SIMULATED_GPUS");
  }

  // Runs stop after 20 of 40 episodes until go_on() (see simulated_worker.cc).
  void stop_in_the_middle() { write_file_atomically(hold_, ""); }
  void go_on() { std::filesystem::remove(hold_); }

  static std::string tool() { return ALLOT_SIMULATED_DIR "/allot"; }

  std::vector<std::string> tune(const std::vector<std::string>& more = {}) const {
    return run_words(tool(), "tune", small_, run_, 40, more);
  }

  // With a worker that is this shell script.
  std::vector<std::string> tune_with_worker(const std::string& script) const {
    const auto tools = directory_ / "bin";
    std::filesystem::create_directories(tools);
    std::filesystem::copy_file(tool(), tools / "allot");
    write_file_atomically(tools / "allot-model", "#!/bin/sh\n" + script + "\n");
    std::filesystem::permissions(tools / "allot-model", std::filesystem::perms::owner_all);
    auto words = tune();
    words[0] = (tools / "allot").string();
    return words;
  }

  // Process number in "worker-1 started, process 123".
  static pid_t process_in(const std::optional<std::string>& line) {
    EXPECT_TRUE(line.has_value());
    return line ? std::stoi(line->substr(line->rfind(' ') + 1)) : 0;
  }

  std::vector<aggregator::EpisodeRow> learning_rows() const {
    return aggregator::episode_rows(run_, "learn");
  }

  // Every episode once, every held-out question once per schedule.
  void expect_whole_run() const {
    const auto run = aggregator::read_run(run_);
    EXPECT_EQ(run.stage, "finished");
    std::set<int64_t> learned;
    for (const auto& row : learning_rows()) EXPECT_TRUE(learned.insert(row.episode).second) << row.episode;
    EXPECT_EQ(learned.size(), 40u);
    ASSERT_EQ(run.scores.size(), 3u);
    for (const auto& score : run.scores) {
      EXPECT_EQ(std::set<uint32_t>(score.questions.begin(), score.questions.end()).size(), 12u)
          << score.label;
      EXPECT_EQ(score.scores.size(), 12u);
    }
  }

  std::filesystem::path directory_;
  SmallModel small_;
  std::filesystem::path run_;
  std::filesystem::path hold_;
};

}  // namespace allot::app
