// eval and ablate with --bind: workers answer as leases. The built tools on the embedded model, from outside:
// what comes is what a model in the evaluating process answers, whoever is killed meanwhile.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <functional>
#include <list>
#include <set>
#include <thread>

#include "base/file.h"
#include "tests/evaluation/tiny_gsm_commands.h"
#include "tests/names.h"

namespace allot::app {
namespace {

using nlohmann::json;

class LeasedAnswers : public testing::Test {
 protected:
  // In float32, so that batches leave no trace in the replies.
  static Words command(const std::string& name, const Words& more) {
    Words words = {"allot", name,      "--model", kModel,        "--data",
                   kData,   "--dtype", "float32", "--estimator", "sys"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  // The same with workers on an address of its own.
  Words served(Words words, const std::string& directory_option) const {
    words.insert(words.end(),
                 {"--lease-seconds", "3", "--bind", "tcp://127.0.0.1:*", directory_option, run_.string()});
    return words;
  }
  RunningCommand& start_worker(const std::string& name, const Words& place) {
    Words words = {"allot", "worker", "--name", name, "--threads", "1", "--max-sequences", "8"};
    words.insert(words.end(), place.begin(), place.end());
    return workers_.emplace_back(words);
  }
  RunningCommand& start_worker(const std::string& name) {
    return start_worker(name, {"--run", run_.string()});
  }
  // What a command prints with a worker, which must be what it prints without.
  json expect_result_of_alone(const std::string& name, const Words& asked) {
    RunningCommand serving(served(command(name, asked), "--answers"));
    start_worker("w");
    const CommandResult done = serving.wait();
    EXPECT_EQ(done.code, 0) << done.err;
    const CommandResult alone = run_command(command(name, asked));
    EXPECT_EQ(alone.code, 0) << alone.err;
    EXPECT_EQ(json::parse(done.out), json::parse(alone.out));
    return json::parse(done.out);
  }
  static bool wait_for(const std::function<bool()>& what) {
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!what() && std::chrono::steady_clock::now() < give_up)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    return what();
  }
  size_t lines() const { return lines_in(run_); }
  static size_t lines_in(const std::filesystem::path& directory) {
    std::ifstream file(directory / "replies.jsonl");
    size_t count = 0;
    for (std::string line; std::getline(file, line);) ++count;
    return count;
  }
  // The whole lines of the answers' file.
  std::multiset<std::string> kept() const { return lines_of(read_file(run_ / "replies.jsonl")); }
  static std::multiset<std::string> lines_of(const std::string& text) {
    std::multiset<std::string> lines;
    std::istringstream all(text);
    for (std::string line; std::getline(all, line);) lines.insert(line);
    return lines;
  }

  const std::filesystem::path folder_ = fresh_directory(), run_ = folder_ / "run";
  std::list<RunningCommand> workers_;
};

TEST_F(LeasedAnswers, AreThoseOfOneProcessThoughWorkersAndTheEvaluationAreKilled) {
  const Words asked = {"--schedule", "uniform:16", "--schedule", "dense", "--repeats", "2", "--limit", "40"};
  constexpr size_t kAll = 160;
  const Words words = served(command("eval", asked), "--run");
  RunningCommand first(words);
  RunningCommand& killed = start_worker("killed");
  start_worker("steady");
  ASSERT_TRUE(wait_for([&] { return lines() > 0; }));
  killed.send_signal(SIGKILL);
  const size_t before = lines();
  ASSERT_TRUE(wait_for([&] { return lines() > before; }));
  first.send_signal(SIGKILL);
  ASSERT_EQ(first.wait().code, 128 + SIGKILL);
  const size_t at_kill = lines();
  ASSERT_LT(at_kill, kAll);

  RunningCommand second(words);
  ASSERT_TRUE(wait_for([&] { return lines() > at_kill; })) << "the steady worker follows to the new address";
  std::string endpoint = read_file(run_ / "endpoint");
  endpoint.pop_back();
  start_worker("late", {"--connect", endpoint});
  const CommandResult done = second.wait();
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.out, Names(at_kill, kAll, run_.string()));
  EXPECT_EQ(lines(), kAll);  // no question was answered twice

  Words here = command("eval", asked);
  here.insert(here.end(), {"--run", (folder_ / "here").string()});
  const CommandResult alone = run_command(here);
  ASSERT_EQ(alone.code, 0) << alone.err;
  EXPECT_EQ(kept(), lines_of(read_file(folder_ / "here" / "replies.jsonl")));
}

// Both tasks ask the same numbers of questions under the same schedules; what differs are the questions, the
// way they are graded, and how often they are asked.
TEST_F(LeasedAnswers, OfSeveralTasksAreThoseOfOneProcessThoughWorkersAndTheEvaluationAreKilled) {
  write_file_atomically(folder_ / "suite.conf",
                        "[words]\n"
                        "task = gsm8k\n"
                        "limit = 32\n"
                        "[file]\n"
                        "task = " +
                            std::string(ALLOT_SOURCE_DIR) + "/configs/tasks/tiny-gsm.json\n" +
                            "data = " + kModel + "/train.jsonl\n" +
                            "limit = 20\n"
                            "repeats = 2\n");
  const Words asked = {"--suite", (folder_ / "suite.conf").string(), "--schedule", "uniform:16", "--schedule",
                       "dense"};
  constexpr size_t kWords = 64, kFile = 80;
  const auto words_lines = [&] { return lines_in(run_ / "words"); };
  const auto file_lines = [&] { return lines_in(run_ / "file"); };
  const Words words = served(command("eval", asked), "--run");
  // The whole of one task and a part of the other, in two starts.
  RunningCommand first(words);
  RunningCommand& killed = start_worker("killed");
  ASSERT_TRUE(wait_for([&] { return words_lines() > 0; }));
  killed.send_signal(SIGKILL);
  start_worker("steady");
  ASSERT_TRUE(wait_for([&] { return file_lines() > 0; }));
  first.send_signal(SIGKILL);
  ASSERT_EQ(first.wait().code, 128 + SIGKILL);
  const size_t of_words = words_lines(), of_file = file_lines();
  ASSERT_LT(of_file, kFile);

  const std::filesystem::path moved = folder_ / "moved.jsonl";
  std::filesystem::copy(kModel + "/train.jsonl", moved);
  RunningCommand second(words);
  start_worker("late", {"--run", run_.string(), "--train", moved.string(), "--train", kData});
  const CommandResult done = second.wait();
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.out, Names(of_words, kWords, run_ / "words", of_file, kFile, run_ / "file"));
  EXPECT_EQ(words_lines(), kWords) << "no question was answered twice";
  EXPECT_EQ(file_lines(), kFile);

  Words here = command("eval", asked);
  here.insert(here.end(), {"--run", (folder_ / "here").string()});
  const CommandResult alone = run_command(here);
  ASSERT_EQ(alone.code, 0) << alone.err;
  for (const char* task : {"words", "file"})
    EXPECT_EQ(lines_of(read_file(run_ / task / "replies.jsonl")),
              lines_of(read_file(folder_ / "here" / task / "replies.jsonl")))
        << task;
  const CommandResult check = run_command({"allot", "history", "check", run_.string()});
  EXPECT_EQ(check.code, 0) << check.out << check.err;
}

TEST_F(LeasedAnswers, OfSeveralTasksNeedTheDataOfEach) {
  write_file_atomically(
      folder_ / "suite.conf",
      "[a]\ntask = gsm8k\nlimit = 4\n[b]\ntask = gsm8k\nlimit = 4\ndata = " + kModel + "/train.jsonl\n");
  RunningCommand serving(served(command("eval", {"--suite", (folder_ / "suite.conf").string()}), "--run"));
  ASSERT_TRUE(wait_for([&] { return std::filesystem::exists(run_ / "endpoint"); }));
  write_file_atomically(folder_ / "other.jsonl", R"({"question": "1 + 1?", "answer": "#### 2"})");
  const CommandResult refused =
      start_worker("w", {"--run", run_.string(), "--train", (folder_ / "other.jsonl").string()}).wait();
  EXPECT_EQ(refused.code, 3);
  EXPECT_THAT(refused.err, Names(2, "other.jsonl"));
  serving.send_signal(SIGINT);
  const CommandResult ended = serving.wait();
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.err, Names("stopped", 0, 8, run_.string(), "goes on"));
}

TEST_F(LeasedAnswers, GoOnInOneProcessAndOnWorkersInTurn) {
  const auto asked = [](const std::string& limit) {
    return Words{"--schedule", "8,8,8,8,exact,8,8,8", "--limit", limit};
  };
  Words here = command("eval", asked("10"));
  here.insert(here.end(), {"--run", run_.string()});
  ASSERT_EQ(run_command(here).code, 0);
  RunningCommand served_later(served(command("eval", asked("30")), "--run"));
  start_worker("w");
  const CommandResult on_workers = served_later.wait();
  ASSERT_EQ(on_workers.code, 0) << on_workers.err;
  EXPECT_THAT(on_workers.out, Names(10, 30, run_.string()));
  here = command("eval", asked("32"));
  here.insert(here.end(), {"--run", run_.string(), "--details", (folder_ / "details").string()});
  const CommandResult last = run_command(here);
  EXPECT_THAT(last.out, Names(30, 32, run_.string()));
  here = command("eval", asked("32"));
  here.insert(here.end(), {"--details", (folder_ / "alone").string()});
  ASSERT_EQ(run_command(here).code, 0);
  EXPECT_EQ(read_file(folder_ / "details"), read_file(folder_ / "alone"));
  // Everything is answered: no worker is needed, nor a port.
  const CommandResult again = run_command(served(command("eval", asked("32")), "--run"));
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_THAT(again.out, Names(32, 32, run_.string()));
}

TEST_F(LeasedAnswers, OfAnAblationGiveItsResult) {
  expect_result_of_alone("ablate", {"--base", "16", "--limit", "8", "--json"});
  EXPECT_EQ(lines(), 9u * 8u);
}

TEST_F(LeasedAnswers, OfAnAblationOfKvHeadsGiveItsResult) {
  const json result =
      expect_result_of_alone("ablate", {"--base", "16", "--limit", "3", "--per-kv-head", "--json"});
  EXPECT_EQ(result.at("layers").size(), 32u);
  EXPECT_EQ(lines(), 33u * 3u);
}

TEST_F(LeasedAnswers, AreStoppedByASignalAndRefuseOtherDevices) {
  const Words asked = {"--schedule", "dense", "--limit", "8"};
  Words on_gpus = served(command("eval", asked), "--run");
  on_gpus.insert(on_gpus.end(), {"--device", "cuda"});
  RunningCommand serving(on_gpus);
  ASSERT_TRUE(wait_for([&] { return std::filesystem::exists(run_ / "endpoint"); }));
  const CommandResult refused = start_worker("w", {"--run", run_.string(), "--exit-when-finished"}).wait();
  EXPECT_EQ(refused.code, 3);
  EXPECT_THAT(refused.err, Names("cuda", "cpu", "--device"));
  const CommandResult status = run_command({"allot", "status", "--run", run_.string(), "--json"});
  EXPECT_EQ(json::parse(status.out).at("stage"), "evaluate") << status.err;
  serving.send_signal(SIGINT);
  const CommandResult ended = serving.wait();
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.err, Names("stopped", 0, 8, run_.string(), "goes on"));

  // What reads runs says what it is.
  for (const Words& reader : {Words{"allot", "report", "--run"}, Words{"allot", "status", "--run"},
                              Words{"allot", "aggregator", "--run"}, Words{"allot", "tune", "--run"}}) {
    Words words = reader;
    words.push_back(run_.string());
    const CommandResult read = run_command(words);
    EXPECT_EQ(read.code, 3) << reader[1];
    EXPECT_THAT(read.err, Names("evaluation", run_.string())) << reader[1];
  }
  const CommandResult check = run_command({"allot", "history", "check", run_.string()});
  EXPECT_EQ(check.code, 0) << check.out << check.err;
}

TEST_F(LeasedAnswers, StayWhereTheLeasesBeginAnewSinceWorkersAreToldSomethingElse) {
  for (const auto& [limit, seconds] : {std::pair("4", "3"), std::pair("8", "4")}) {
    Words words = command("eval", {"--schedule", "dense", "--limit", limit, "--lease-seconds", seconds});
    words.insert(words.end(), {"--bind", "tcp://127.0.0.1:*", "--run", run_.string()});
    RunningCommand serving(words);
    start_worker(std::string("w") + limit, {"--run", run_.string(), "--exit-when-finished"});
    const CommandResult done = serving.wait();
    ASSERT_EQ(done.code, 0) << done.err;
    EXPECT_EQ(workers_.back().wait().code, 0);
  }
  EXPECT_EQ(lines(), 8u);
  EXPECT_EQ(json::parse(read_file(run_ / "spec.json")).at("lease_ms"), "4000");
  const CommandResult check = run_command({"allot", "history", "check", run_.string()});
  EXPECT_EQ(check.code, 0) << check.out << check.err;
}

TEST_F(LeasedAnswers, AreNotPutBesideWhatARunLearned) {
  RunningCommand learning({"allot", "aggregator", "--run", run_.string(), "--model", kModel, "--data",
                           kModel + "/train.jsonl", "--heldout", kData, "--total", "64"});
  ASSERT_TRUE(wait_for([&] { return std::filesystem::exists(run_ / "endpoint"); }));
  learning.send_signal(SIGTERM);
  ASSERT_EQ(learning.wait().code, 0);
  const std::string spec = read_file(run_ / "spec.json"), history = read_file(run_ / "history.sqlite");
  const CommandResult refused = run_command(served(command("eval", {"--limit", "4"}), "--run"));
  EXPECT_EQ(refused.code, 3);
  EXPECT_THAT(refused.err, Names(run_.string(), "learned"));
  EXPECT_EQ(read_file(run_ / "spec.json"), spec);
  EXPECT_EQ(read_file(run_ / "history.sqlite"), history);
}

TEST_F(LeasedAnswers, NeedADirectoryAndAnAddress) {
  const auto refused = [&](const std::string& name, const Words& more) {
    const CommandResult ended = run_command(command(name, more));
    EXPECT_EQ(ended.code, 2) << ended.err;
    return ended.err;
  };
  EXPECT_THAT(refused("eval", {"--bind", "tcp://127.0.0.1:*"}), Names("--bind", "--run"));
  EXPECT_THAT(refused("ablate", {"--bind", "tcp://127.0.0.1:*"}), Names("--bind", "--answers"));
  for (const char* of_leases : {"--max-attempts", "--lease-seconds", "--max-connections", "--max-rate"})
    EXPECT_THAT(refused("eval", {of_leases, "3"}), Names(of_leases, "--bind"));
  EXPECT_THAT(refused("eval", {"--run", run_.string(), "--limit", "2", "--bind", "udp://x"}),
              Names("udp://x"));
  EXPECT_THAT(refused("eval", {"--run", run_.string(), "--limit", "2", "--bind", "tcp://0.0.0.0:*"}),
              Names("0.0.0.0"));
}

}  // namespace
}  // namespace allot::app
