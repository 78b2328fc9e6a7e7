// `allot aggregator` and the worker command from outside, with a worker that simulates its model.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>

#include "aggregator/run_data.h"
#include "app/cli/stop_signal.h"
#include "base/file.h"
#include "base/json.h"
#include "model/model_config.h"
#include "tests/app/run_command.h"
#include "tests/app/small_model.h"
#include "tests/names.h"

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
    return run_words(tool(), "aggregator", small_, run_, 8, more);
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
  EXPECT_THAT(result.err, AllOf(::testing::StartsWith("allot aggregator: "), Names(taken.endpoint())));
  EXPECT_FALSE(std::filesystem::exists(run_));
}

TEST_F(AggregatorCommand, AddressThatOthersReachNeedsConsent) {
  const auto result = run_command(aggregator({"--bind", "tcp://0.0.0.0:*"}));
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, Names("tcp://0.0.0.0:*", "--insecure"));
}

TEST_F(AggregatorCommand, NewRunWithoutOptionsNamesWhatIsMissing) {
  const auto result = run_command({tool(), "aggregator", "--run", run_.string()});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, Names("--model", "missing", "--total", "missing"));
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
  EXPECT_THAT(result.err, AllOf(Names("weights_fingerprint"), HasSubstr("' != '")));
}

TEST_F(AggregatorCommand, WholeWeightsAreComparedWhereTheRunAsksForIt) {
  RunningCommand serving(aggregator({"--whole-weights", "--exit-when-finished"}));
  ASSERT_TRUE(serving.error_line_with("listening on"));
  const auto other = write_small_model(directory_ / "other");
  std::string weights = read_file(other.model / "model.safetensors");
  weights.back() = '\2';
  write_file_atomically(other.model / "model.safetensors", weights);
  const auto refused = run_command(worker({"--model", other.model.string()}));
  EXPECT_EQ(refused.code, 3);
  const std::string whole = model::whole_weights_sha256(small_.model);
  EXPECT_THAT(refused.err, Names("weights_sha256", whole, model::whole_weights_sha256(other.model)));
  EXPECT_EQ(run_command(worker()).code, 0);
  EXPECT_EQ(serving.wait().code, 0);
  EXPECT_THAT(run_command({tool(), "inspect", small_.model.string(), "--whole-weights"}).out,
              HasSubstr(whole));
  EXPECT_THAT(run_command({tool(), "inspect", run_.string()}).out, HasSubstr("no problems"));
  write_file_atomically(small_.model / "model.safetensors", weights);
  EXPECT_THAT(run_command({tool(), "inspect", run_.string()}).out, Names("SHA-256", whole));
}

TEST_F(AggregatorCommand, WorkerWithAnotherAdapterIsRefusedWithBothFingerprints) {
  const std::string adapter = directory_ / "lora", other = directory_ / "other", copy = directory_ / "copy";
  write_small_adapter(adapter, 4);
  write_small_adapter(other, 5);
  write_small_adapter(copy, 4);
  RunningCommand serving(aggregator({"--adapter", adapter}));
  ASSERT_TRUE(serving.error_line_with("listening on"));
  const auto refused = run_command(worker({"--adapter", other}));
  EXPECT_EQ(refused.code, 3);
  EXPECT_THAT(refused.err, AllOf(Names("adapter.fingerprint"), HasSubstr("' != '")));
  // One that is not there may be mounted later.
  std::filesystem::rename(adapter, directory_ / "moved");
  const auto missing = run_command(worker());
  EXPECT_EQ(missing.code, 1);
  EXPECT_THAT(missing.err, Names(adapter, "adapter_config.json", "--adapter"));
  const auto worked = run_command(worker({"--adapter", copy}));
  EXPECT_EQ(worked.code, 0) << worked.err;
}

TEST_F(AggregatorCommand, WorkerWithAnAdapterForARunWithoutOneIsRefused) {
  const std::string adapter = directory_ / "lora";
  write_small_adapter(adapter, 4);
  RunningCommand serving(aggregator());
  ASSERT_TRUE(serving.error_line_with("listening on"));
  const auto result = run_command(worker({"--adapter", adapter}));
  EXPECT_EQ(result.code, 3);
  EXPECT_THAT(result.err, Names("small-model", "no adapter", adapter));
}

TEST_F(AggregatorCommand, AStoredRunKeepsItsAdapter) {
  const std::string adapter = directory_ / "lora";
  write_small_adapter(adapter, 4);
  {
    RunningCommand serving(aggregator({"--adapter", adapter}));
    ASSERT_TRUE(serving.error_line_with("listening on"));
    serving.send_signal(SIGTERM);
    EXPECT_EQ(serving.wait().code, 0);
  }
  const std::string other = directory_ / "other", copy = directory_ / "copy";
  write_small_adapter(other, 5);
  write_small_adapter(copy, 4);
  const auto result = run_command({tool(), "aggregator", "--run", run_.string(), "--adapter", other});
  EXPECT_EQ(result.code, 3);
  EXPECT_THAT(result.err, Names("--adapter", other, run_, "adapter.fingerprint"));
  RunningCommand serving({tool(), "aggregator", "--run", run_.string(), "--adapter", copy});
  EXPECT_TRUE(serving.error_line_with("listening on"));
}

TEST_F(AggregatorCommand, WorkerWithOtherQuestionsIsRefused) {
  write_file_atomically(directory_ / "edited.jsonl", read_file(small_.train) + read_file(small_.heldout));
  RunningCommand serving(aggregator());
  ASSERT_TRUE(serving.error_line_with("listening on"));
  const auto result = run_command(worker({"--train", (directory_ / "edited.jsonl").string()}));
  EXPECT_EQ(result.code, 3);
  EXPECT_THAT(result.err, Names("questions", 24, 36));
}

TEST_F(AggregatorCommand, WorkerWhoseDeviceHasNotTheRunsFormatsEndsForGood) {
  RunningCommand serving(aggregator({"--keys", "split", "--weights", "fp8-logits"}));
  ASSERT_TRUE(serving.error_line_with("listening on"));
  const auto result = run_command(worker({"--device", "cpu"}));
  EXPECT_EQ(result.code, 3);
  EXPECT_THAT(result.err, Names("weights", "fp8-logits", "cpu", "dtype"));
  ::setenv("ALLOT_SIMULATED_GPUS", "1", 1);
  const auto welcome = run_command(worker({"--device", "cuda"}));
  ::unsetenv("ALLOT_SIMULATED_GPUS");
  EXPECT_EQ(welcome.code, 0) << welcome.err;
}

TEST_F(AggregatorCommand, WorkerWaitsForItsAggregatorAndStopsWhenAsked) {
  RunningCommand waiting(worker());
  ASSERT_TRUE(waiting.error_line_with("waiting for an aggregator of " + run_.string()));
  waiting.send_signal(SIGTERM);
  EXPECT_EQ(waiting.wait().code, 0);
}

TEST_F(AggregatorCommand, ExitCodesOfAWorkerSayWhetherARetryCanHelp) {
  RunningCommand serving(aggregator());
  ASSERT_TRUE(serving.error_line_with("listening on"));
  std::filesystem::create_directory(directory_ / "empty");
  EXPECT_EQ(run_command(worker({"--model", (directory_ / "empty").string()})).code, 1)
      << "may be mounted later";
  EXPECT_EQ(run_command(worker({"--no-such-option"})).code, 2);
  const auto mismatch = run_command(worker({"--train", small_.heldout.string()}));
  EXPECT_EQ(mismatch.code, 3) << mismatch.err;
  EXPECT_EQ(run_command(worker()).code, 0) << "finished";
}

TEST_F(AggregatorCommand, WorkerThatCannotReachItsAggregatorStopsWithinSecondsWhenAsked) {
  const TakenPort silent;  // accepts connections and never answers
  RunningCommand waiting({tool(), "worker", "--connect", silent.endpoint(), "--log-level", "debug"});
  pause_for(std::chrono::seconds(2));  // into its longer waits
  const auto asked = std::chrono::steady_clock::now();
  waiting.send_signal(SIGTERM);
  EXPECT_EQ(waiting.wait().code, 0);
  EXPECT_LT(std::chrono::steady_clock::now() - asked, std::chrono::seconds(5));
}

TEST_F(AggregatorCommand, ARunIsPausedResumedAndCutShortFromOutside) {
  const auto control = [&](std::vector<std::string> words) {
    words.insert(words.begin(), {tool(), "control"});
    words.insert(words.end(), {"--run", run_.string()});
    return run_command(words);
  };
  const auto status = [&] {
    return nlohmann::json::parse(run_command({tool(), "status", "--run", run_.string(), "--json"}).out);
  };
  RunningCommand serving(aggregator({"--exit-when-finished"}));
  ASSERT_TRUE(serving.error_line_with("listening on"));
  EXPECT_EQ(control({"pause", "--name", "ann"}).code, 0);
  EXPECT_TRUE(status().at("paused"));
  RunningCommand working(worker());
  const auto more = control({"episodes", "12"});
  EXPECT_EQ(more.code, 0) << more.err;
  EXPECT_THAT(more.out, Names("episodes", 12, 0));
  EXPECT_EQ(status().at("episodes_wanted"), 12);
  EXPECT_EQ(status().at("episodes_done"), 0);
  EXPECT_EQ(control({"resume"}).code, 0);
  EXPECT_EQ(working.wait().code, 0);
  EXPECT_EQ(serving.wait().code, 0);

  const auto run = aggregator::read_run(run_);
  EXPECT_EQ(run.stage, "finished");
  EXPECT_EQ(std::ssize(run.learned), 12);
  const auto after = status();
  ASSERT_EQ(after.at("steering").size(), 3u);
  EXPECT_EQ(after.at("steering")[0].at("action"), "pause");
  EXPECT_EQ(after.at("steering")[0].at("by"), "ann");
  EXPECT_EQ(after.at("steering")[1].at("episodes"), 12);
  EXPECT_THAT(after.at("steering")[2].at("by").get<std::string>(), HasSubstr("@"));
  EXPECT_FALSE(after.at("paused"));
  EXPECT_THAT(run_command({tool(), "status", "--run", run_.string()}).out,
              HasSubstr("control   pause by ann\n"));

  const auto late = control({"stop"});
  EXPECT_EQ(late.code, 1);
  EXPECT_THAT(late.err, Names(run_));
}

TEST_F(AggregatorCommand, ControlsThatMakeNoSenseAreWrongUsageOrRefusedWithTheReason) {
  const std::vector<std::pair<std::vector<std::string>, std::vector<std::string>>> wrong{
      {{"hurry"}, {"hurry"}},
      {{"episodes"}, {"episodes", "number"}},
      {{"episodes", "ten"}, {"episodes", "ten"}},
      {{"pause", "5"}, {"5", "pause"}},
      {{"cordon"}, {"cordon", "name"}},
      {{"pause", "--at-reward", "0.5"}, {"--at-reward", "stop"}}};
  for (const auto& [words, named] : wrong) {
    std::vector<std::string> command{tool(), "control"};
    command.insert(command.end(), words.begin(), words.end());
    command.insert(command.end(), {"--connect", "tcp://127.0.0.1:1"});
    const auto result = run_command(command);
    EXPECT_EQ(result.code, 2) << result.err;
    EXPECT_THAT(result.err, NamesAll(named));
  }
  RunningCommand serving(aggregator());
  ASSERT_TRUE(serving.error_line_with("listening on"));
  const auto refused = run_command({tool(), "control", "resume", "--run", run_.string()});
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.err, Names("refused", "paused"));
  EXPECT_EQ(run_command({tool(), "control", "stop", "--at-reward", "0.9", "--run", run_.string()}).code, 0);
  EXPECT_THAT(run_command({tool(), "status", "--run", run_.string()}).out, Names("reward", "90.0%"));
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
  EXPECT_THAT(result.err, Names("--run", "--connect"));
}

}  // namespace
}  // namespace allot::app
