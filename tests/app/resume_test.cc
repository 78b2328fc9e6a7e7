// A run that goes on: with its directory alone, with options that agree or differ, after its end; and what
// `allot status` and the page in its directory say of it meanwhile. The built tools from outside, with a
// worker that simulates its model.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <csignal>
#include <sstream>

#include "aggregator/run_data.h"
#include "aggregator/sqlite.h"
#include "base/file.h"
#include "base/json.h"
#include "tests/app/run_command.h"
#include "tests/app/small_model.h"
#include "tests/names.h"

namespace allot::app {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class Resume : public ::testing::Test {
 protected:
  Resume() : directory_(fresh_directory()), small_(write_small_model(directory_)), run_(directory_ / "run") {}

  static std::string tool() { return std::string(ALLOT_SIMULATED_DIR) + "/allot"; }
  std::string file(const std::string& name) const { return (directory_ / name).string(); }

  std::vector<std::string> aggregator(const std::vector<std::string>& more = {}) const {
    return run_words(tool(), "aggregator", small_, run_, 8, more);
  }
  // With the directory alone.
  std::vector<std::string> resumed(const std::string& command,
                                   const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words = {tool(), command, "--run", run_.string()};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  // Leaves a run that has begun.
  void begin(const std::vector<std::string>& more = {}) const {
    RunningCommand serving(aggregator(more));
    ASSERT_TRUE(serving.error_line_with("listening on"));
    serving.send_signal(SIGTERM);
    ASSERT_EQ(serving.wait().code, 0);
  }
  // Leaves a run of 8 episodes that is finished.
  void finish() const {
    RunningCommand serving(aggregator({"--exit-when-finished"}));
    ASSERT_TRUE(serving.error_line_with("listening on"));
    ASSERT_EQ(run_command(resumed("worker", {"--exit-when-finished"})).code, 0);
    ASSERT_EQ(serving.wait().code, 0);
  }
  nlohmann::json status(int* code = nullptr, const std::vector<std::string>& more = {}) const {
    std::vector<std::string> words = resumed("status", {"--json"});
    words.insert(words.end(), more.begin(), more.end());
    const auto result = run_command(words);
    if (code != nullptr) *code = result.code;
    return nlohmann::json::parse(result.out);
  }

  std::filesystem::path directory_;
  SmallModel small_;
  std::filesystem::path run_;
};

TEST_F(Resume, AnOptionThatDiffersFromTheRunIsRefusedAsItWasTypedWithAndWithoutTheModel) {
  begin();
  const std::string spec = read_file(run_ / "spec.json");
  const auto other = write_small_model(directory_ / "other");
  write_file_atomically(other.train,
                        read_file(other.train) + "{\"question\":\"1+1?\",\"answer\":\"#### 2\"}\n");
  const std::vector<std::vector<std::string>> differing = {
      {"--seed", "2"},
      {"--total", "65"},
      {"--floor", "2"},
      {"--estimator", "iid"},
      {"--max-new-tokens", "7"},
      {"--questions", "5"},
      {"--divergence-questions", "5"},
      {"--policy", "pairs"},
      {"--policy-option", "gain=3"},
      {"--max-policy-lag", "7"},
      {"--until", "settled"},
      {"--start", "15,7,7,7,7,7,7,7"},
      {"--reward", "divergence"},
      {"--preflight", "3"},
      {"--ignore-preflight"},
      {"--gain-floor", "2"},
      {"--dtype", "float16"},
      {"--prompt-style", "boxed"},
      {"--data", other.train.string()},
      {"--heldout", other.train.string()},
      {"--adapter", file("lora")},
  };
  write_small_adapter(file("lora"), 4);
  for (const auto& words : differing) {
    for (const bool with_model : {false, true}) {
      if (with_model && words.front() != "--seed" && words.front() != "--adapter") continue;  // to be quick
      auto command = resumed("aggregator", words);
      if (with_model) command.insert(command.end(), {"--model", small_.model.string()});
      SCOPED_TRACE(words.front() + (with_model ? " with --model" : ""));
      const auto result = run_command(command);
      EXPECT_EQ(result.code, 3) << result.err;
      const bool of_model = with_model && words.front() == "--adapter";
      EXPECT_THAT(result.err, Names(run_, of_model ? "--model" : words.front()));
    }
  }
  const auto several = run_command(resumed("tune", {"--seed", "2", "--total", "65"}));
  EXPECT_EQ(several.code, 3);
  EXPECT_THAT(several.err, Names("--seed", 2, 1, "--total", 65, 64));
  EXPECT_EQ(read_file(run_ / "spec.json"), spec);
}

TEST_F(Resume, OptionsThatAgreeAndDataThatMovedAreTheRun) {
  begin();
  const auto moved = write_small_model(directory_ / "moved");
  RunningCommand serving(resumed("aggregator", {"--model",         moved.model.string(),
                                                "--data",          moved.train.string(),
                                                "--heldout",       moved.heldout.string(),
                                                "--total",         "64",
                                                "--seed",          "1",
                                                "--prompt-style",  "auto",
                                                "--reward",        "auto",
                                                "--start",         "",
                                                "--episodes",      "8",
                                                "--most-episodes", "77"}));
  ASSERT_TRUE(serving.error_line_with("epoch 2: stage learn, 0 of 8 episodes"));
  serving.send_signal(SIGTERM);
  EXPECT_EQ(serving.wait().code, 0);
  const auto shown = run_command(resumed("aggregator", {"--dry-run"}));
  EXPECT_EQ(shown.code, 0) << shown.err;
  EXPECT_THAT(shown.out, AllOf(HasSubstr("total = 64\n"), HasSubstr("episodes = 8\n"),
                               HasSubstr("model = " + small_.model.string() + "\n")));
}

TEST_F(Resume, WhatAnOperatorMayChangeIsTakenAndStays) {
  begin();
  {
    RunningCommand serving(resumed("aggregator", {"--lease-seconds", "7", "--max-attempts", "9", "--episodes",
                                                  "20", "--bounds", "3:4", "--heldout-questions", "3"}));
    ASSERT_TRUE(serving.error_line_with("epoch 2: stage learn, 0 of 20 episodes"));
    const auto now = status();
    EXPECT_EQ(now.at("lease_ms"), 7000);
    EXPECT_EQ(now.at("episodes_wanted"), 20);
    ASSERT_EQ(now.at("steering").size(), 5u);
    EXPECT_THAT(now.at("steering")[0].at("by").get<std::string>(), HasSubstr("@"));
    serving.send_signal(SIGTERM);
    EXPECT_EQ(serving.wait().code, 0);
  }
  const auto rests = aggregator::read_run(run_);
  EXPECT_EQ(rests.lease_ms, 7000);
  EXPECT_EQ(rests.max_attempts, 9);
  EXPECT_EQ(rests.bounds, "3:4");
  EXPECT_EQ(rests.spec.task().heldout_questions(), 3u);
  // The same options again change nothing, and those of the first start are said to be overruled.
  RunningCommand serving(resumed("aggregator", {"--lease-seconds", "120", "--max-attempts", "9"}));
  const auto overruled = serving.error_line_with("lease-seconds");
  ASSERT_TRUE(overruled);
  EXPECT_THAT(*overruled,
              Names("--lease-seconds", 120, 7, "allot control lease-seconds 120 --run " + run_.string()));
  ASSERT_TRUE(serving.error_line_with("listening on"));
  EXPECT_EQ(status().at("steering").size(), 5u);
  EXPECT_EQ(status().at("lease_ms"), 7000);
  const auto back = run_command(resumed("control", {"--lease-seconds", "120"}));
  EXPECT_EQ(back.code, 0) << back.err;
  EXPECT_EQ(status().at("lease_ms"), 120'000);
  EXPECT_EQ(status().at("steering")[5].at("action"), "lease-seconds");
  EXPECT_THAT(run_command(resumed("status")).out,
              Names("leases of 120 s", "9 attempts at an episode", "3 held-out questions"));
  const auto two = run_command(resumed("control", {"pause", "--episodes", "7"}));
  EXPECT_EQ(two.code, 2);
  EXPECT_THAT(two.err, Names("--episodes", "pause"));
}

TEST_F(Resume, AFinishedRunLearnsOnUnderAPlainAggregator) {
  finish();
  const std::string schedule = read_file(run_ / "schedule.json");
  RunningCommand serving(resumed("aggregator"));
  ASSERT_TRUE(serving.error_line_with("stage finished, 8 of 8"));
  ASSERT_TRUE(serving.error_line_with("the run is finished"));
  RunningCommand idle(resumed("worker"));  // one that outlives the run
  ASSERT_TRUE(idle.error_line_with("connected to"));
  const auto fewer = run_command(resumed("control", {"--episodes", "8"}));
  EXPECT_EQ(fewer.code, 1);
  EXPECT_THAT(fewer.err, Names("refused", 8));
  const auto more = run_command(resumed("control", {"--episodes", "40"}));
  EXPECT_EQ(more.code, 0) << more.err;
  EXPECT_THAT(more.out, Names(40, 8));
  ASSERT_TRUE(serving.error_line_with("the run is finished"));
  const auto run = aggregator::read_run(run_);
  EXPECT_EQ(run.stage, "finished");
  EXPECT_EQ(run.episodes_learned(), 40);
  EXPECT_EQ(run.scores.at(1).scores.size(), 12u);
  EXPECT_NE(read_file(run_ / "schedule.json"), schedule);
  idle.send_signal(SIGTERM);
  EXPECT_EQ(idle.wait().code, 0);
  serving.send_signal(SIGTERM);
  EXPECT_EQ(serving.wait().code, 0);
  EXPECT_EQ(run_command({tool(), "history", "check", run_.string()}).code, 0);
  EXPECT_EQ(status().at("episodes_done"), 40);
}

TEST_F(Resume, TuneNeedsTheDirectoryAloneAndTakesMoreEpisodesForAFinishedRun) {
  finish();
  const auto shown = run_command(resumed("tune"));
  EXPECT_EQ(shown.code, 0) << shown.err;
  EXPECT_THAT(shown.err, AllOf(HasSubstr("showing its result"), Not(HasSubstr("started"))));
  const auto on = run_command(resumed("tune", {"--episodes", "20"}));
  EXPECT_EQ(on.code, 0) << on.err;
  EXPECT_THAT(on.out, Names("20 episodes", "learned"));
  EXPECT_EQ(aggregator::read_run(run_).episodes_learned(), 20);
  const auto again = run_command(resumed("tune", {"--episodes", "20"}));
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_THAT(again.err, HasSubstr("showing its result"));
  EXPECT_EQ(again.out, on.out);
  const auto fewer = run_command(resumed("tune", {"--episodes", "10"}));
  EXPECT_NE(fewer.code, 0);
  EXPECT_THAT(fewer.err, Names(10, 20));
}

TEST_F(Resume, TheStatusTellsAnAggregatorThatHangsFromOneThatIsGone) {
  begin();
  int code = -1;
  EXPECT_EQ(status(&code).at("aggregator"), "none");
  EXPECT_EQ(code, 0);
  RunningCommand serving(resumed("aggregator"));
  ASSERT_TRUE(serving.error_line_with("listening on"));
  EXPECT_EQ(status(&code).at("aggregator"), "answers");
  EXPECT_EQ(code, 0);
  serving.send_signal(SIGSTOP);
  const auto stopped = status(&code);
  EXPECT_EQ(code, 4);
  EXPECT_EQ(stopped.at("aggregator"), "silent");
  EXPECT_TRUE(stopped.at("running"));
  EXPECT_FALSE(stopped.at("ready"));
  EXPECT_THAT(stopped.at("why_not_ready").get<std::string>(),
              Names("runs", "does not answer", "tcp://127.0.0.1"));
  const auto text = run_command(resumed("status"));
  EXPECT_EQ(text.code, 4);
  EXPECT_THAT(text.out, AllOf(HasSubstr("stage learn"), HasSubstr("and does not answer")));
  serving.send_signal(SIGCONT);
  EXPECT_EQ(status(&code).at("aggregator"), "answers");
  // A killed one leaves its address behind, and its lock falls.
  serving.send_signal(SIGKILL);
  EXPECT_EQ(serving.wait().code, 128 + SIGKILL);
  ASSERT_TRUE(std::filesystem::exists(run_ / "endpoint"));
  EXPECT_EQ(status(&code).at("aggregator"), "none");
  EXPECT_EQ(code, 0);
  EXPECT_THAT(run_command(resumed("status")).out, HasSubstr("no aggregator serves this run"));
}

TEST_F(Resume, TheStatusSaysThatItNeedsAKey) {
  make_key(tool(), file("server.key"));
  make_key(tool(), file("stranger.key"));
  const std::string viewer = make_key(tool(), file("viewer.key"));
  write_file_atomically(file("keys.txt"), viewer + " ann viewer\n");
  RunningCommand serving(aggregator({"--key", file("server.key"), "--allow", file("keys.txt")}));
  ASSERT_TRUE(serving.error_line_with("listening on"));
  int code = -1;
  for (const std::vector<std::string>& without :
       {std::vector<std::string>{}, {"--key", file("stranger.key")}}) {
    const auto refused = status(&code, without);
    EXPECT_EQ(code, 5);
    EXPECT_EQ(refused.at("aggregator"), "needs key");
    EXPECT_TRUE(refused.at("running"));
    EXPECT_THAT(refused.at("why_not_ready").get<std::string>(), Names("runs", "key"));
  }
  EXPECT_EQ(status(&code, {"--key", file("viewer.key")}).at("aggregator"), "answers");
  EXPECT_EQ(code, 0);
  serving.send_signal(SIGKILL);
  serving.wait();
  ASSERT_TRUE(std::filesystem::exists(run_ / "server-key"));
  EXPECT_EQ(status(&code).at("aggregator"), "none") << "killed, with its key left behind";
  EXPECT_EQ(code, 0);
}

TEST_F(Resume, WrongWordsEndWith2AndAHistoryOfALaterReleaseWith3) {
  make_key(tool(), file("server.key"));
  make_key(tool(), file("open.key"));
  ASSERT_EQ(::chmod(file("open.key").c_str(), 0644), 0);
  write_file_atomically(file("keys.txt"), "");
  write_file_atomically(file("bad-keys.txt"), "no key\n");
  write_file_atomically(file("no.key"), "nothing\n");
  const auto keys = [&](const char* key, const char* list) {
    return std::vector<std::string>{"--key", file(key), "--allow", file(list)};
  };
  const auto connected = [&](const std::string& command, const std::vector<std::string>& more = {}) {
    std::vector<std::string> words = {tool(), command};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  };
  const std::vector<std::pair<std::vector<std::string>, std::string>> wrong = {
      {connected("status", {"--connect", "127.0.0.1:5557"}), "127.0.0.1:5557"},
      {connected("status", {"--connect", "tcp://127.0.0.1:*"}), "tcp://127.0.0.1:*"},
      {connected("status", {"--connect", "tcp://127.0.0.1:99999"}), "99999"},
      {connected("control", {"pause", "--connect", "127.0.0.1"}), "127.0.0.1"},
      {connected("worker", {"--connect", "udp://127.0.0.1:5"}), "udp://127.0.0.1:5"},
      {connected("status", {"--connect", "tcp://127.0.0.1:1", "--key", file("open.key"), "--server-key",
                            std::string(64, 'a')}),
       "0644"},
      {connected("status", {"--connect", "tcp://127.0.0.1:1", "--key", file("server.key"), "--server-key",
                            file("no.key")}),
       "no.key"},
      {aggregator({"--bind", "127.0.0.1:0"}), "127.0.0.1:0"},
      {aggregator({"--bind", "tcp://127.0.0.1:99999"}), "99999"},
      {aggregator({"--bind", "tcp://0.0.0.0:*"}), "--insecure"},
      {aggregator({"--http", "8080"}), "8080"},
      {aggregator({"--http", "127.0.0.1:http"}), "127.0.0.1:http"},
      {aggregator(keys("open.key", "keys.txt")), "0644"},
      {aggregator(keys("no.key", "keys.txt")), "no.key"},
      {aggregator(keys("server.key", "bad-keys.txt")), "bad-keys.txt:1"},
      {run_words(tool(), "tune", small_, run_, 8, {"--http", "8080"}), "8080"},
      {run_words(tool(), "aggregator", small_, run_, 8, {"--max-policy-lag", "-1"}), "-1"},
      {run_words(tool(), "aggregator", small_, run_, 8, {"--floor", "9"}), "72"},
  };
  for (const auto& [words, named] : wrong) {
    const auto result = run_command(words);
    EXPECT_EQ(result.code, 2) << named << "\n" << result.err;
    EXPECT_THAT(result.err, HasSubstr(named));
    EXPECT_FALSE(std::filesystem::exists(run_ / "history.sqlite")) << named;
  }
  // What may be mounted later, or is taken now, may be cured by another start.
  EXPECT_EQ(run_command(aggregator(keys("missing.key", "keys.txt"))).code, 1);
  EXPECT_EQ(run_command(aggregator(keys("server.key", "missing.txt"))).code, 1);

  std::filesystem::remove_all(run_);
  begin();
  aggregator::Database(run_ / "history.sqlite", aggregator::Database::Mode::kReadWrite)
      .execute("PRAGMA user_version = 99");
  for (const char* command : {"aggregator", "status"}) {
    const auto newer = run_command(resumed(command));
    EXPECT_EQ(newer.code, 3) << newer.err;
    EXPECT_THAT(newer.err, Names("history.sqlite", 99));
  }
}

TEST_F(Resume, LogLinesOfJsonHaveTimeWithZoneLevelAndMessage) {
  RunningCommand serving(aggregator({"--log-format", "json", "--lease-seconds", "60"}));
  ASSERT_TRUE(serving.error_line_with("listening on"));
  EXPECT_EQ(run_command(resumed("control", {"max-attempts", "7", "--name", "ann \"the\tboss\\"})).code, 0);
  EXPECT_EQ(run_command(resumed("control", {"pause", "--name", "bob"})).code, 0);
  const auto second = run_command(resumed("aggregator", {"--log-format", "json"}));
  EXPECT_EQ(second.code, 1);
  serving.send_signal(SIGTERM);
  const auto served = serving.wait();
  std::vector<std::string> messages;
  for (const std::string& text : {served.err, second.err}) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      const auto entry = nlohmann::json::parse(line);
      EXPECT_THAT(entry.at("time").get<std::string>(),
                  ::testing::ContainsRegex("^20..-..-..T..:..:..[.]...[+-]..:..$"));
      EXPECT_EQ(entry.at("name"), "allot aggregator");
      EXPECT_TRUE(entry.at("level").is_string());
      messages.push_back(entry.at("message"));
    }
  }
  EXPECT_THAT(messages, ::testing::Contains(HasSubstr("max-attempts by ann \"the boss\\: ")));
  EXPECT_THAT(messages, ::testing::Contains(HasSubstr("pause by bob: paused")));
  EXPECT_THAT(messages.back(), Names("another aggregator works", run_));

  RunningCommand plain(resumed("aggregator"));
  const auto line = plain.error_line_with("listening on");
  ASSERT_TRUE(line);
  EXPECT_THAT(*line,
              ::testing::ContainsRegex("^20..-..-..T..:..:..[.]...[+-]..:.. info  allot aggregator: "));
}

TEST_F(Resume, TheFinishedRunIsLeftAsAPageAndShownForAsLongAsAsked) {
  RunningCommand tuning(
      run_words(tool(), "tune", small_, run_, 8, {"--http", "127.0.0.1:*", "--linger", "600"}));
  const auto announced = tuning.error_line_with("the page http://127.0.0.1:");
  ASSERT_TRUE(announced);
  EXPECT_THAT(*announced, Names(600, "Ctrl-C"));
  EXPECT_EQ(status().at("aggregator"), "answers");
  EXPECT_EQ(status().at("stage"), "finished");
  tuning.send_signal(SIGINT);
  const auto result = tuning.wait();
  EXPECT_EQ(result.code, 0) << result.err;
  const std::string page = read_file(run_ / "page.html");
  EXPECT_THAT(page, AllOf(HasSubstr("\"stage\":\"finished\""), HasSubstr("\"running\":false"),
                          HasSubstr("http-equiv=\"Content-Security-Policy\""), Not(HasSubstr("{state}")),
                          Not(HasSubstr("{head}"))));
  EXPECT_THAT(result.out, HasSubstr("learned"));
  EXPECT_EQ(status().at("aggregator"), "none");
}

}  // namespace
}  // namespace allot::app
