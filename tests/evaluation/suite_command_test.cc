// eval --suite: several tasks in one command, each with its own questions, repeats and answers. The built
// tools on the embedded model, from outside.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <set>
#include <thread>

#include "base/file.h"
#include "tests/evaluation/tiny_gsm_commands.h"
#include "tests/names.h"

namespace allot::app {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

class EvalSuite : public testing::Test {
 protected:
  EvalSuite() {
    write_file_atomically(suite_,
                          "[words]\n"
                          "task = gsm8k\n"
                          "data = " +
                              kData +
                              "\n"
                              "limit = 12\n"
                              "[file]\n"
                              "task = " +
                              std::string(ALLOT_SOURCE_DIR) +
                              "/configs/tasks/tiny-gsm.json\n"
                              "data = " +
                              kModel +
                              "/train.jsonl\n"
                              "limit = 8\n"
                              "repeats = 2\n");
  }
  // In float32, so that batches leave no trace in the replies.
  static Words alone(const Words& more) {
    Words words = {"allot",       "eval", "--model",    kModel,       "--dtype",    "float32",
                   "--estimator", "sys",  "--schedule", "uniform:16", "--schedule", "dense"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  Words words(const Words& more = {}) const {
    Words words = alone({"--suite", suite_.string()});
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  CommandResult done(const Words& words) const {
    const CommandResult result = run_command(words);
    EXPECT_EQ(result.code, 0) << result.err;
    return result;
  }
  static size_t lines_of(const std::filesystem::path& file) {
    std::ifstream text(file);
    size_t count = 0;
    for (std::string line; std::getline(text, line);) ++count;
    return count;
  }
  // Of both tasks.
  size_t lines() const {
    return lines_of(run_ / "words" / "replies.jsonl") + lines_of(run_ / "file" / "replies.jsonl");
  }
  std::string refused(const Words& more) const {
    const CommandResult result = run_command(words(more));
    EXPECT_EQ(result.code, 2) << result.err;
    return result.err;
  }

  const std::filesystem::path folder_ = fresh_directory(), run_ = folder_ / "run",
                              suite_ = folder_ / "suite.conf";
};

TEST_F(EvalSuite, GivesWhatEachTaskGivesAlone) {
  const json both = json::parse(done(words({"--json", "--details", (folder_ / "both").string()})).out);
  EXPECT_EQ(both.at("suite"), suite_.string());
  ASSERT_EQ(both.at("tasks").size(), 2u);
  const std::vector<Words> commands = {
      alone({"--data", kData, "--limit", "12"}),
      alone({"--data", kModel + "/train.jsonl", "--limit", "8", "--repeats", "2", "--task",
             std::string(ALLOT_SOURCE_DIR) + "/configs/tasks/tiny-gsm.json"})};
  for (size_t i = 0; i < commands.size(); ++i) {
    Words one = commands[i];
    one.insert(one.end(), {"--json", "--details", (folder_ / "one.jsonl").string()});
    json expected = json::parse(done(one).out);
    json found = both.at("tasks")[i];
    EXPECT_EQ(found.at("name"), i == 0 ? "words" : "file");
    found.erase("name");
    for (json* either : {&expected, &found}) either->erase("seconds");
    EXPECT_EQ(found, expected);
    EXPECT_EQ(read_file(folder_ / "both" / (i == 0 ? "words.jsonl" : "file.jsonl")),
              read_file(folder_ / "one.jsonl"));
  }
}

TEST_F(EvalSuite, PrintsOneTableWithATaskInEachLine) {
  const std::string out = done(words({"--lm-eval-out", (folder_ / "lm").string()})).out;
  EXPECT_THAT(out, testing::ContainsRegex("task +schedule +samples +n "));
  EXPECT_THAT(out, testing::ContainsRegex("\nwords +uniform:16 +128 +12 "));
  EXPECT_THAT(out, testing::ContainsRegex("\nfile +dense +all +8 "));
  EXPECT_THAT(out, testing::ContainsRegex("\nfile +dense +[0-9.]+  [0-9.]+\n")) << "accuracy of each repeat";
  EXPECT_THAT(out, Not(testing::ContainsRegex("\nwords +dense +[0-9.]+  [0-9.]+\n"))) << "it has one";
  EXPECT_THAT(out, Names("words, against uniform:16", "file, against uniform:16", "again, words: allot eval",
                         "again, file: allot eval"));
  for (const char* place : {"words/dense", "words/uniform_16", "file/dense", "file/uniform_16"})
    EXPECT_FALSE(std::filesystem::is_empty(folder_ / "lm" / place)) << place;
}

TEST_F(EvalSuite, ThatIsKilledAgainAndAgainAsksEveryQuestionOnce) {
  constexpr size_t kAll = 2 * 12 + 2 * 2 * 8;
  const Words slowly = words({"--run", run_.string(), "--max-sequences", "2", "--threads", "1"});
  int killed = 0;
  for (size_t before = 0; before < kAll; before = lines()) {
    ASSERT_LT(killed, 60) << "after " << before << " answers";
    RunningCommand running(slowly);
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (lines() <= before + 4 && std::chrono::steady_clock::now() < give_up)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    running.send_signal(SIGKILL);
    const int code = running.wait().code;
    if (code != 0) {
      ASSERT_EQ(code, 128 + SIGKILL);
    }
    ++killed;
  }
  EXPECT_GT(killed, 3);
  const CommandResult last = done(slowly);
  EXPECT_THAT(last.out, Names("24 of 24", run_ / "words", "32 of 32", run_ / "file"));
  EXPECT_EQ(lines(), kAll);
  (void)done(words({"--run", (folder_ / "whole").string()}));
  for (const char* task : {"words", "file"}) {
    std::multiset<std::string> replies[2];
    for (const auto& [place, found] :
         {std::pair(run_, &replies[0]), std::pair(folder_ / "whole", &replies[1])})
      for (const json& row : json_lines(read_file(place / task / "replies.jsonl"))) found->insert(row.dump());
    EXPECT_EQ(replies[0], replies[1]) << task;
  }
}

TEST_F(EvalSuite, MayGetMoreTasksAndQuestionsAndKeepsEachTasksAnswersAsThoseOfATaskAlone) {
  (void)done(words({"--run", run_.string()}));
  write_file_atomically(suite_,
                        "[file]\n"
                        "task = " +
                            std::string(ALLOT_SOURCE_DIR) +
                            "/configs/tasks/tiny-gsm.json\n"
                            "data = " +
                            kModel +
                            "/train.jsonl\n"
                            "limit = 10\n"
                            "repeats = 2\n"
                            "[new]\n"
                            "task = gsm8k\n"
                            "data = " +
                            kData +
                            "\n"
                            "limit = 3\n");
  EXPECT_THAT(done(words({"--run", run_.string()})).out, Names("32 of 40", "0 of 6"));
  const json alone_again = json::parse(
      done(alone({"--data", kData, "--limit", "12", "--run", (run_ / "words").string(), "--json"})).out);
  EXPECT_EQ(alone_again.at("answered_before"), 24);
}

TEST_F(EvalSuite, ADryRunGivesAConfigThatDoesTheSame) {
  const CommandResult dry = done(words({"--limit", "2", "--dry-run"}));
  write_file_atomically(folder_ / "again.conf", dry.out);
  EXPECT_THAT(dry.out, HasSubstr("suite = " + suite_.string()));
  const json again =
      json::parse(done({"allot", "eval", "--config", (folder_ / "again.conf").string(), "--json"}).out);
  EXPECT_EQ(again.at("tasks")[0].at("schedules")[0].at("n"), 12) << "what a section says holds for its task";
  EXPECT_EQ(again.at("tasks")[1].at("schedules")[1].at("n"), 8);
}

TEST_F(EvalSuite, RefusesWhatItsTasksCannotDoAndNamesTheSection) {
  write_file_atomically(suite_, "[a]\ntask = gsm8k\ndata = " + kData +
                                    "\n[b]\ntask = gsm8k\nlimit = 5000\ndata = " + kData + "\n");
  EXPECT_THAT(refused({}), Names("suite.conf:4", "[b]", 5000, kData));
  write_file_atomically(suite_, "[a]\ntask = gsm8k\n");
  EXPECT_THAT(refused({}), Names("[a]", "--data"));
  write_file_atomically(suite_, "[a]\ntask = gsm8k\ndata = " + kData + "\nlimit = 2\n");
  EXPECT_THAT(refused({"--executed-out", (folder_ / "x.json").string()}), Names("--executed-out", "--suite"));
  EXPECT_THAT(refused({"--bind", "tcp://127.0.0.1:*"}), Names("--bind", "--run"));
  (void)done(alone({"--data", kData, "--limit", "2", "--run", run_.string()}));
  const CommandResult mixed = run_command(words({"--run", run_.string()}));
  EXPECT_EQ(mixed.code, 3);
  EXPECT_THAT(mixed.err, Names(run_.string(), "single task"));
}

}  // namespace
}  // namespace allot::app
