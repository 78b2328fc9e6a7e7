// `allot worker` from outside, with a simulated model: what it does about an aggregator that goes away.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <thread>

#include "aggregator/run_data.h"
#include "base/file.h"
#include "tests/app/run_command.h"
#include "tests/app/small_model.h"
#include "tests/hub_snapshot.h"
#include "tests/names.h"
#include "wire/keys.h"

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

  // On a free port of 127.0.0.1. A worker waits no longer than a lease for an aggregator that says nothing.
  std::vector<std::string> aggregator(const std::string& key) const {
    return run_words(tool(), "aggregator", small_, run_, 24,
                     {"--bind", "tcp://127.0.0.1:*", "--key", file(key), "--allow", file("keys.txt"),
                      "--lease-seconds", "1", "--exit-when-finished"});
  }

  std::filesystem::path directory_;
  SmallModel small_;
  std::filesystem::path run_;
  std::filesystem::path hold_;  // while it is there, workers stop at episode 20 (simulated_worker.cc)
};

TEST_F(WorkerCommand, FollowsTheAggregatorOfItsRunDirectoryToAnotherPortAndKey) {
  wire::write_key_pair(file("first.key"), wire::make_key_pair());
  wire::write_key_pair(file("second.key"), wire::make_key_pair());
  const wire::KeyPair worker_key = wire::make_key_pair();
  wire::write_key_pair(file("worker.key"), worker_key);
  write_file_atomically(file("keys.txt"), worker_key.public_key.text() + " node-a\n");
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

// Both keys are exchanged while it works: its own at once, the aggregator's by a restart at the same address.
TEST_F(WorkerCommand, TakesUpKeysThatWereChangedInTheirFiles) {
  const auto new_key = [&](const std::string& name) {
    const wire::KeyPair pair = wire::make_key_pair();
    wire::write_key_pair(file(name), pair);
    return pair.public_key.text();
  };
  const std::string old_server = new_key("old.key"), new_server = new_key("new.key");
  const std::string old_worker = new_key("worker.key"), new_worker = new_key("next.key");
  const auto allow = [&](const std::string& key) {
    write_file_atomically(file("keys.txt"), key + " node-a\n");
  };
  write_file_atomically(file("server.pub"), old_server + "\n");
  allow(old_worker);
  write_file_atomically(hold_, "");
  std::optional<RunningCommand> serving(std::in_place, aggregator("old.key"));
  ASSERT_TRUE(serving->error_line_with("listening on tcp://")) << serving->wait().err;
  std::string endpoint = read_file(run_ / "endpoint");
  endpoint.pop_back();
  RunningCommand worker({tool(), "worker", "--connect", endpoint, "--key", file("worker.key"), "--server-key",
                         file("server.pub"), "--exit-when-finished"});
  ASSERT_TRUE(worker.error_line_with("connected to " + endpoint));

  allow(new_worker);  // the old key is silenced
  std::filesystem::rename(file("next.key"), file("worker.key"));
  ASSERT_TRUE(worker.error_line_with("the keys for " + endpoint + " have been changed"));

  serving->send_signal(SIGKILL);
  serving->wait();
  write_file_atomically(file("server.pub"), new_server + "\n");
  std::vector<std::string> again = aggregator("new.key");
  *std::ranges::find(again, "tcp://127.0.0.1:*") = endpoint;
  serving.emplace(again);
  ASSERT_TRUE(serving->error_line_with("listening on tcp://"));
  ASSERT_TRUE(worker.error_line_with("the keys for " + endpoint + " have been changed"));
  std::filesystem::remove(hold_);
  const auto worked = worker.wait();
  EXPECT_EQ(worked.code, 0) << worked.err;
  EXPECT_EQ(serving->wait().code, 0);
  EXPECT_EQ(aggregator::read_run(run_).stage, "finished");
}

TEST_F(WorkerCommand, FindsTheRunsSnapshotInTheHubCacheOfItsOwnMachine) {
  const std::string commit(40, 'a');
  const std::filesystem::path cache = directory_ / "hub";
  SmallModel named = small_;
  named.model = write_snapshot(cache, "org/tiny", "main", commit, small_.model);
  write_small_adapter(directory_ / "lora", 4);
  const auto adapter = write_snapshot(cache, "ann/lora", "main", commit, directory_ / "lora");
  RunningCommand serving(
      run_words(tool(), "aggregator", named, run_, 1,
                {"--bind", "tcp://127.0.0.1:*", "--exit-when-finished", "--adapter", adapter.string()}));
  ASSERT_TRUE(serving.error_line_with("listening on tcp://")) << serving.wait().err;
  const std::filesystem::path elsewhere = directory_ / "elsewhere";
  std::filesystem::rename(cache, elsewhere);
  const auto run_with = [&](const std::filesystem::path& its_cache, std::vector<std::string> words) {
    words.insert(words.begin(), {"/usr/bin/env", "HF_HUB_CACHE=" + its_cache.string(), tool()});
    return run_command(words);
  };
  const std::string download = "hf download org/tiny --revision " + commit;
  const auto without = run_with(cache, {"worker", "--run", run_.string(), "--exit-when-finished"});
  ASSERT_EQ(without.code, 1);
  EXPECT_THAT(without.err, Names(named.model, download, "--model"));
  const auto blind = run_with(cache, {"inspect", run_.string()});
  EXPECT_EQ(blind.code, 1);
  EXPECT_THAT(blind.out, Names("hub_name", "org/tiny", "hub_commit", download, "ann/lora", "--adapter"));
  const auto seen = run_with(elsewhere, {"inspect", run_.string()});
  EXPECT_EQ(seen.code, 0) << seen.out;
  const auto worked = run_with(elsewhere, {"worker", "--run", run_.string(), "--exit-when-finished"});
  ASSERT_EQ(worked.code, 0) << worked.err;
  EXPECT_EQ(serving.wait().code, 0);
}

}  // namespace
}  // namespace allot::app
