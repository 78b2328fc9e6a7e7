// `allot worker` from outside, with a simulated model: what it does about an aggregator that goes away.
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <thread>

#include "aggregator/run_data.h"
#include "base/file.h"
#include "tests/app/run_command.h"
#include "tests/app/small_model.h"

namespace allot::app {
namespace {

class WorkerCommand : public ::testing::Test {
 protected:
  WorkerCommand()
      : directory_(fresh_directory()),
        small_(write_small_model(directory_)),
        run_(directory_ / "run"),
        hold_(directory_ / "hold") {
    ::setenv("ALLOT_SIMULATED_HOLD", hold_.c_str(), 1);
  }

  static std::string tool() { return std::string(ALLOT_SIMULATED_DIR) + "/allot"; }
  std::string file(const std::string& name) const { return (directory_ / name).string(); }

  // On a free port of 127.0.0.1.
  std::vector<std::string> aggregator(const std::string& key) const {
    return run_words(tool(), "aggregator", small_, run_, 24,
                     {"--bind", "tcp://127.0.0.1:*", "--key", file(key), "--allow", file("keys.txt"),
                      "--exit-when-finished"});
  }

  std::filesystem::path directory_;
  SmallModel small_;
  std::filesystem::path run_;
  std::filesystem::path hold_;  // while it is there, workers stop at episode 20 (simulated_worker.cc)
};

TEST_F(WorkerCommand, FollowsTheAggregatorOfItsRunDirectoryToAnotherPortAndKey) {
  make_key(tool(), file("first.key"));
  make_key(tool(), file("second.key"));
  write_file_atomically(file("keys.txt"), make_key(tool(), file("worker.key")) + " node-a\n");
  write_file_atomically(hold_, "");
  std::optional<RunningCommand> serving(std::in_place, aggregator("first.key"));
  ASSERT_TRUE(serving->error_line_with("listening on tcp://")) << serving->wait().err;
  const std::string first = read_file(run_ / "endpoint");
  RunningCommand worker(
      {tool(), "worker", "--run", run_.string(), "--key", file("worker.key"), "--exit-when-finished"});
  ASSERT_TRUE(worker.error_line_with("connected to " + first.substr(0, first.find('\n'))));
  while (aggregator::read_run(run_).counters.accepted() < 20) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  serving->send_signal(SIGKILL);  // its address stays in the run directory
  serving->wait();

  serving.emplace(aggregator("second.key"));
  ASSERT_TRUE(serving->error_line_with("listening on tcp://"));
  const std::string second = read_file(run_ / "endpoint");
  ASSERT_NE(first, second);
  ASSERT_TRUE(worker.error_line_with("has moved from " + first.substr(0, first.find('\n')) + " to " +
                                     second.substr(0, second.find('\n'))));
  std::filesystem::remove(hold_);
  const auto worked = worker.wait();
  EXPECT_EQ(worked.code, 0) << worked.err;
  EXPECT_EQ(serving->wait().code, 0);
  EXPECT_EQ(aggregator::read_run(run_).stage, "finished");
}

}  // namespace
}  // namespace allot::app
