// eval --run: answers are kept as they come, and an evaluation goes on wherever it was stopped. The built
// tools on the embedded model, from outside.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <fstream>
#include <map>
#include <set>
#include <thread>
#include <vector>

#include "base/file.h"
#include "base/sha256.h"
#include "evaluation/answers.h"
#include "tests/evaluation/tiny_gsm_commands.h"
#include "tests/names.h"

namespace allot::app {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

class EvalRun : public testing::Test {
 protected:
  EvalRun() : folder_(fresh_directory()), run_(folder_ / "run") {}

  // In float32, so that batches leave no trace in the replies; 12 questions unless `more` says how many.
  static Words plain(const Words& more) {
    Words words = {"--dtype", "float32"};
    if (std::ranges::find(more, "--limit") == more.end()) words.insert(words.end(), {"--limit", "12"});
    if (std::ranges::find(more, "--estimator") == more.end())
      words.insert(words.end(), {"--estimator", "sys"});
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  Words words(const Words& more) const {
    Words words = plain(more);
    words.insert(words.end(), {"--run", run_.string()});
    return words;
  }
  // Words of the whole command.
  Words command(const Words& more) const {
    Words command = {"allot", "eval", "--model", kModel, "--data", kData};
    for (const std::string& word : words(more)) command.push_back(word);
    return command;
  }
  size_t lines() const {
    std::ifstream file(run_ / "replies.jsonl");
    size_t count = 0;
    for (std::string line; std::getline(file, line);) ++count;
    return count;
  }
  // Waits until there are more than `before` answers.
  void wait_for_more(size_t before) const {
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (lines() <= before && std::chrono::steady_clock::now() < give_up)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  json result(const Words& more) const {
    Words all = words(more);
    all.emplace_back("--json");
    const CommandResult done = allot::app::run("eval", all);
    EXPECT_EQ(done.code, 0) << done.err;
    return json::parse(done.out);
  }
  std::vector<json> kept() const { return json_lines(read_file(run_ / "replies.jsonl")); }
  std::string details(const Words& more) const {
    Words all = plain(more);
    all.insert(all.end(), {"--details", (folder_ / "details.jsonl").string()});
    const CommandResult done = allot::app::run("eval", all);
    EXPECT_EQ(done.code, 0) << done.err;
    return read_file(folder_ / "details.jsonl");
  }
  const std::filesystem::path folder_, run_;
};

std::multiset<std::string> lines_of(const std::string& text) {
  std::multiset<std::string> lines;
  for (const json& row : json_lines(text)) lines.insert(row.dump());
  return lines;
}

TEST_F(EvalRun, ThatIsKilledAgainAndAgainAsksEveryQuestionOnce) {
  const Words schedules = {"--schedule", "uniform:16", "--schedule", "dense", "--repeats", "2"};
  Words slowly = schedules;
  slowly.insert(slowly.end(), {"--max-sequences", "2", "--threads", "1"});
  constexpr size_t kAll = 48;
  int killed = 0;
  for (size_t before = 0; before < kAll; before = lines()) {
    ASSERT_LT(killed, 60) << "after " << before << " answers";
    RunningCommand running(command(slowly));
    wait_for_more(before + 4);  // so that every attempt brings the next one on
    running.send_signal(SIGKILL);
    const int code = running.wait().code;
    if (code != 0) {
      ASSERT_EQ(code, 128 + SIGKILL);
    }
    ++killed;
  }
  EXPECT_GT(killed, 3);
  const CommandResult last = run_command(command(slowly));
  ASSERT_EQ(last.code, 0) << last.err;
  EXPECT_THAT(last.out, Names(kAll, kAll, run_.string()));
  EXPECT_EQ(lines(), kAll);  // no question was asked again
  EXPECT_EQ(lines_of(read_file(run_ / "replies.jsonl")), lines_of(details(schedules)));
}

TEST_F(EvalRun, SaysWhatASignalStoppedAndGoesOn) {
  RunningCommand running(command({"--schedule", "uniform:16", "--limit", "200", "--max-sequences", "1"}));
  wait_for_more(0);
  running.send_signal(SIGINT);
  const CommandResult ended = running.wait();
  EXPECT_EQ(ended.code, 1);
  EXPECT_THAT(ended.err, Names("stopped", 200, run_.string(), "goes on"));
}

TEST_F(EvalRun, ThatIsCompleteGivesItsResultAgain) {
  const json first = result({"--schedule", "uniform:16"});
  EXPECT_EQ(first.at("answered_before"), 0);
  const std::string file = read_file(run_ / "replies.jsonl");
  const json again = result({"--schedule", "uniform:16"});
  EXPECT_EQ(again.at("answered_before"), 12);
  EXPECT_EQ(again.at("schedules"), first.at("schedules"));
  EXPECT_EQ(read_file(run_ / "replies.jsonl"), file);
}

TEST_F(EvalRun, AsksWhatWasAdded) {
  (void)result({"--schedule", "uniform:16"});
  const json more =
      result({"--schedule", "dense", "--schedule", "uniform:16", "--repeats", "2", "--limit", "14"});
  EXPECT_EQ(more.at("answered_before"), 12);
  EXPECT_EQ(kept().size(), 56u);
  const json& dense = more.at("schedules")[0];
  EXPECT_EQ(dense.at("n"), 14);
  EXPECT_EQ(dense.at("repeats").size(), 2u);
  // Fewer questions and the first repeat alone: from what is there.
  const json less = result({"--schedule", "uniform:16", "--limit", "10"});
  EXPECT_EQ(less.at("answered_before"), 10);
  EXPECT_EQ(less.at("schedules")[0].at("n"), 10);
  EXPECT_EQ(kept().size(), 56u);
}

TEST_F(EvalRun, RepeatsDrawAnewAndTheirMeanIsTheScore) {
  const json scores = result({"--schedule", "uniform:12", "--repeats", "3"}).at("schedules")[0];
  const auto rows = kept();
  std::map<int, double> by_repeat;
  std::map<int, std::set<std::string>> replies;
  double sum = 0;
  for (const json& row : rows) {
    by_repeat[row.at("repeat")] += row.at("score").get<double>();
    replies[row.at("question")].insert(row.at("reply").get<std::string>());
    sum += row.at("score").get<double>();
  }
  EXPECT_NEAR(scores.at("accuracy").get<double>(), sum / 36, 1e-12);
  for (int repeat = 0; repeat < 3; ++repeat)
    EXPECT_NEAR(scores.at("repeats")[repeat].at("accuracy").get<double>(), by_repeat[repeat] / 12, 1e-12);
  size_t different = 0;
  for (const auto& [question, texts] : replies) different += texts.size() > 1;
  EXPECT_GT(different, 3u);
  // The first repeat is what one would be.
  const auto once = json_lines(details({"--schedule", "uniform:12"}));
  for (const json& row : once) EXPECT_TRUE(replies[row.at("question")].contains(row.at("reply"))) << row;
}

TEST_F(EvalRun, RefusesOtherConditions) {
  (void)result({"--schedule", "uniform:16"});
  const auto refused = [&](const Words& more) {
    const CommandResult done = allot::app::run("eval", words(more));
    EXPECT_EQ(done.code, 3) << done.out << done.err;
    return done.err;
  };
  EXPECT_THAT(refused({"--schedule", "uniform:16", "--seed", "7"}), Names("evaluation.json", "seed", 0, 7));
  EXPECT_THAT(refused({"--schedule", "uniform:16", "--estimator", "iid"}),
              Names("attention.estimator", "iid"));
  EXPECT_EQ(kept().size(), 12u);
}

TEST_F(EvalRun, RefusesToCountWhatIsExecuted) {
  const CommandResult done = allot::app::run(
      "eval", words({"--schedule", "uniform:16", "--executed-out", (folder_ / "e").string()}));
  EXPECT_EQ(done.code, 2);
  EXPECT_THAT(done.err, Names("--executed-out", "--run"));
  const CommandResult alone = allot::app::run("eval", {"--schedule", "dense", "--regrade"});
  EXPECT_EQ(alone.code, 2);
  EXPECT_THAT(alone.err, Names("--regrade", "--run"));
}

TEST_F(EvalRun, GradesAgainWithoutAskingAgain) {
  const std::string task_file = (folder_ / "task.json").string();
  const std::string task = read_file(std::string(ALLOT_SOURCE_DIR) + "/configs/tasks/tiny-gsm.json");
  std::ofstream(task_file) << task;
  const json first = result({"--schedule", "dense", "--task", task_file});
  ASSERT_GE(first.at("schedules")[0].at("correct"), 10);
  // Now no reply is right: the answer is looked for where it never stands.
  json changed = json::parse(task);
  changed["version"] = changed.at("version").get<int>() + 1;
  changed["extract"]["pattern"] = "no such text (\\d+)";
  std::ofstream(task_file, std::ios::trunc) << changed.dump();
  const CommandResult refused = allot::app::run("eval", words({"--schedule", "dense", "--task", task_file}));
  EXPECT_EQ(refused.code, 3);
  EXPECT_THAT(refused.err, Names("task.version"));
  const json again = result({"--schedule", "dense", "--task", task_file, "--regrade"});
  EXPECT_EQ(again.at("answered_before"), 12);
  EXPECT_EQ(again.at("schedules")[0].at("correct"), 0);
  for (const json& row : kept()) EXPECT_EQ(row.at("extracted"), false);
  EXPECT_EQ(result({"--schedule", "dense", "--task", task_file}).at("schedules")[0].at("correct"), 0);
}

std::filesystem::path only_file(const std::filesystem::path& folder, const std::string& begin) {
  std::vector<std::filesystem::path> found;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().filename().string().starts_with(begin)) found.push_back(entry.path());
  EXPECT_EQ(found.size(), 1u) << folder << ' ' << begin;
  return found.at(0);
}

TEST_F(EvalRun, WritesTheFilesOfLmEvaluationHarness) {
  const std::filesystem::path out = folder_ / "lm";
  const json scores = result({"--schedule", "dense", "--schedule", "uniform:12", "--repeats", "2",
                              "--lm-eval-out", out.string()})
                          .at("schedules");
  for (size_t schedule = 0; schedule < 2; ++schedule) {
    const std::filesystem::path folder = out / (schedule == 0 ? "dense" : "uniform_12");
    const json results = json::parse(read_file(only_file(folder, "results_20")));
    const json& of_task = results.at("results").at("gsm8k");
    EXPECT_EQ(of_task.at("exact_match,none"), scores[schedule].at("accuracy"));
    EXPECT_EQ(of_task.at("exact_match_stderr,none"), scores[schedule].at("standard_error"));
    EXPECT_EQ(results.at("n-samples").at("gsm8k").at("effective"), 12);
    EXPECT_EQ(results.at("config").at("model_args").at("schedule"), scores[schedule].at("schedule"));
    const auto samples = json_lines(read_file(only_file(folder, "samples_gsm8k_20")));
    ASSERT_EQ(samples.size(), 12u);
    double sum = 0;
    for (size_t question = 0; question < samples.size(); ++question) {
      const json& sample = samples[question];
      EXPECT_EQ(sample.at("doc_id"), question);
      EXPECT_EQ(sample.at("resps")[0].size(), 2u);
      const std::string prompt = sample.at("arguments").at("gen_args_0").at("arg_0");
      EXPECT_EQ(prompt, sample.at("doc").at("question").get<std::string>() + "\n");
      EXPECT_EQ(sample.at("prompt_hash"), sha256_hex(prompt));
      sum += sample.at("exact_match").get<double>();
    }
    EXPECT_NEAR(sum / 12, scores[schedule].at("accuracy").get<double>(), 1e-12);
  }
}

// verify and ablate keep answers, too; --run is there the run that learned.
TEST_F(EvalRun, OfOtherCommandsIsNamedByAnswers) {
  const auto with_answers = [&](const std::string& command, const Words& more) {
    Words words = {"--limit", "4", "--estimator", "sys", "--answers", run_.string(), "--json"};
    words.insert(words.end(), more.begin(), more.end());
    const CommandResult done = allot::app::run(command, words);
    EXPECT_EQ(done.code, 0) << done.err;
    return json::parse(done.out);
  };
  const json first = with_answers("ablate", {"--base", "16"});
  EXPECT_EQ(kept().size(), 36u);  // the base and eight layers
  EXPECT_EQ(with_answers("ablate", {"--base", "16"}).at("layers"), first.at("layers"));
  EXPECT_EQ(kept().size(), 36u);
  (void)with_answers("verify", {"--schedule", "uniform:16", "--against", "dense"});
  EXPECT_EQ(kept().size(), 40u) << "the base was answered";
}

}  // namespace
}  // namespace allot::app
