// `allot aggregator` and the worker command from outside, with a worker that simulates its model.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>

#include "aggregator/run_data.h"
#include "base/file.h"
#include "tests/app/run_command.h"
#include "tests/app/small_model.h"

namespace allot::app {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// A TCP port of the loopback address that somebody else listens on.
class TakenPort {
 public:
  TakenPort() : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(::bind(socket_, reinterpret_cast<const sockaddr*>(&address), size), 0);
    EXPECT_EQ(::listen(socket_, 1), 0);
    EXPECT_EQ(::getsockname(socket_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    port_ = ::ntohs(address.sin_port);
  }
  ~TakenPort() { ::close(socket_); }
  std::string endpoint() const { return "tcp://127.0.0.1:" + std::to_string(port_); }

 private:
  int socket_;
  int port_ = 0;
};

class AggregatorCommand : public ::testing::Test {
 protected:
  AggregatorCommand()
      : directory_(fresh_directory()), small_(write_small_model(directory_)), run_(directory_ / "run") {}

  static std::string tool() { return std::string(ALLOT_SIMULATED_DIR) + "/allot"; }

  std::vector<std::string> aggregator(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words = {tool(),        "aggregator",
                                      "--run",       run_.string(),
                                      "--model",     small_.model.string(),
                                      "--data",      small_.train.string(),
                                      "--heldout",   small_.heldout.string(),
                                      "--total",     "64",
                                      "--episodes",  "8",
                                      "--questions", "4"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  std::vector<std::string> worker(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words = {tool(), "worker", "--run", run_.string(), "--exit-when-finished"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  std::filesystem::path directory_;
  SmallModel small_;
  std::filesystem::path run_;
};

TEST_F(AggregatorCommand, ServesARunToItsEndAndWritesTheResults) {
  RunningCommand serving(aggregator({"--exit-when-finished"}));
  ASSERT_TRUE(serving.error_line_with("listening on tcp://127.0.0.1:"));
  const auto worked = run_command(worker());
  EXPECT_EQ(worked.code, 0) << worked.err;
  const auto served = serving.wait();
  EXPECT_EQ(served.code, 0) << served.err;
  EXPECT_EQ(aggregator::read_run(run_).stage, "finished");
  for (const char* file : {"schedule.json", "report.html", "tb"})
    EXPECT_TRUE(std::filesystem::exists(run_ / file)) << file;
  EXPECT_FALSE(std::filesystem::exists(run_ / "endpoint"));
}

TEST_F(AggregatorCommand, StoredRunNeedsNoOptions) {
  {
    RunningCommand serving(aggregator());
    ASSERT_TRUE(serving.error_line_with("listening on"));
    serving.send_signal(SIGTERM);
    EXPECT_EQ(serving.wait().code, 0);
  }
  RunningCommand serving({tool(), "aggregator", "--run", run_.string()});
  ASSERT_TRUE(serving.error_line_with("epoch 2: stage learn, 0 of 8 episodes"));
  serving.send_signal(SIGINT);
  EXPECT_EQ(serving.wait().code, 0);
}

TEST_F(AggregatorCommand, PortInUseIsNamedAndTheRunDirectoryIsNotTouched) {
  const TakenPort taken;
  const auto result = run_command(aggregator({"--bind", taken.endpoint()}));
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, AllOf(StartsWith("allot aggregator: "), HasSubstr(taken.endpoint())));
  EXPECT_FALSE(std::filesystem::exists(run_));
}

TEST_F(AggregatorCommand, AddressThatOthersReachNeedsConsent) {
  const auto result = run_command(aggregator({"--bind", "tcp://0.0.0.0:*"}));
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.err, AllOf(HasSubstr("tcp://0.0.0.0:*"), HasSubstr("insecure")));
}

TEST_F(AggregatorCommand, NewRunWithoutOptionsNamesWhatIsMissing) {
  const auto result = run_command({tool(), "aggregator", "--run", run_.string()});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, AllOf(HasSubstr("--model is missing"), HasSubstr("--total is missing")));
  EXPECT_FALSE(std::filesystem::exists(run_));
}

TEST_F(AggregatorCommand, WorkerWithAnotherModelIsRefusedWithBothFingerprints) {
  const auto other = write_small_model(directory_ / "other");
  std::string weights = read_file(other.model / "model.safetensors");
  weights.back() = '\2';
  write_file_atomically(other.model / "model.safetensors", weights);
  RunningCommand serving(aggregator());
  ASSERT_TRUE(serving.error_line_with("listening on"));
  const auto result = run_command(worker({"--model", other.model.string()}));
  EXPECT_EQ(result.code, 3);
  EXPECT_THAT(result.err, HasSubstr("weights_fingerprint: '"));
  EXPECT_THAT(result.err, HasSubstr("' != '"));
}

TEST_F(AggregatorCommand, WorkerWithOtherQuestionsIsRefused) {
  write_file_atomically(directory_ / "edited.jsonl", read_file(small_.train) + read_file(small_.heldout));
  RunningCommand serving(aggregator());
  ASSERT_TRUE(serving.error_line_with("listening on"));
  const auto result = run_command(worker({"--train", (directory_ / "edited.jsonl").string()}));
  EXPECT_EQ(result.code, 3);
  EXPECT_THAT(result.err, HasSubstr("questions: 24 != 36"));
}

TEST_F(AggregatorCommand, WorkerWaitsForItsAggregatorAndStopsWhenAsked) {
  RunningCommand waiting(worker());
  ASSERT_TRUE(waiting.error_line_with("waiting for an aggregator of " + run_.string()));
  waiting.send_signal(SIGTERM);
  EXPECT_EQ(waiting.wait().code, 0);
}

TEST_F(AggregatorCommand, DrainedWorkerEndsWithTheStatusItWasToldAndAFinishedOneWith0) {
  RunningCommand waiting(worker({"--drained-exit-code", "143"}));
  ASSERT_TRUE(waiting.error_line_with("waiting for an aggregator of"));
  waiting.send_signal(SIGTERM);
  EXPECT_EQ(waiting.wait().code, 143);

  RunningCommand serving(aggregator());
  ASSERT_TRUE(serving.error_line_with("listening on"));
  RunningCommand idle({tool(), "worker", "--run", run_.string(), "--drained-exit-code", "143"});
  ASSERT_TRUE(idle.error_line_with("connected to tcp://127.0.0.1:"));
  const auto finished = run_command(worker({"--drained-exit-code", "143"}));
  EXPECT_EQ(finished.code, 0) << finished.err;
  idle.send_signal(SIGTERM);
  EXPECT_EQ(idle.wait().code, 143);
}

TEST_F(AggregatorCommand, WorkerNeedsOneOfRunAndConnect) {
  const auto result = run_command({tool(), "worker"});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, HasSubstr("give one of --run DIR and --connect ENDPOINT"));
}

}  // namespace
}  // namespace allot::app
