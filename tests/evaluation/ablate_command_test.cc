// ablate of KV heads, beside a schedule, and on questions of four choices: on the embedded model, as people
// run it.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <utility>

#include "base/file.h"
#include "evaluation/ablation.h"
#include "tests/evaluation/tiny_gsm_commands.h"
#include "tests/names.h"

namespace allot::app {
namespace {

using nlohmann::json;
using testing::HasSubstr;

TEST(AblateCommand, FindsTheKvHeadsOfALayerAndShowsAScheduleBesideThem) {
  const std::filesystem::path folder = fresh_directory();
  const Words asked = {"--limit", "8", "--base", "32", "--per-kv-head", "--beside", "9,8,7,6,5,4,3,exact"};
  Words words = asked;
  words.insert(words.end(), {"--out", folder / "ablation.json", "--plots", folder / "plots"});
  const CommandResult result = run("ablate", words);
  ASSERT_EQ(result.code, 0) << result.err;
  const evaluation::Ablation ablation = evaluation::read_ablation(folder / "ablation.json");
  EXPECT_EQ(ablation.kv_heads, 4);
  ASSERT_EQ(ablation.layers.size(), 8u * 4u);
  EXPECT_THAT(result.out, testing::ContainsRegex("layer  KV head  accuracy .*  samples\n"));
  EXPECT_THAT(result.out, testing::ContainsRegex("\n    0        3  .*         9\n"));
  EXPECT_THAT(result.out, testing::ContainsRegex("\n    7        0  .*     exact\n"));
  EXPECT_THAT(result.err, HasSubstr((folder / "plots" / "ablation.svg").string()));
  EXPECT_FALSE(read_file(folder / "plots" / "ablation.svg").empty());
  expect_again(run("ablate", {"--limit", "2", "--base", "4", "--per-kv-head", "--beside", "uniform:4"}).out);
  // The first layer, without which nearly nothing is right (FindsTheLayerThatNeedsItsSamples), has a head
  // that is missed.
  EXPECT_TRUE(std::any_of(ablation.layers.begin(), ablation.layers.begin() + 4, [&](const auto& row) {
    return row.accuracy.correct < ablation.base_accuracy.correct;
  }));
}

TEST(AblateCommand, RefusesKvHeadsWhereTheyHaveNoBudgets) {
  const auto refused = [](const Words& more) {
    Words words = {"--limit", "2"};
    words.insert(words.end(), more.begin(), more.end());
    const CommandResult result = run("ablate", words);
    EXPECT_EQ(result.code, 2) << result.err;
    return result.err;
  };
  EXPECT_THAT(refused({"--per-kv-head", "--estimator", "pooled"}), Names("--per-kv-head", "pooled"));
  EXPECT_THAT(refused({"--per-kv-head", "--device", "cuda"}), Names("--per-kv-head", "cuda"));
  EXPECT_THAT(refused({"--png"}), Names("--png", "--plots"));
  EXPECT_THAT(refused({"--beside", "dense"}), Names("--beside"));
}

// Questions of four choices as MMLU's files have them, without a header line, made by rule.
std::string choice_questions(int count) {
  std::string csv;
  for (int i = 0; i < count; ++i) {
    const int right = i % 4;
    csv += fmt::format("\"How many are {} and {}, together?\"", i, i + 3);
    for (int choice = 0; choice < 4; ++choice) csv += fmt::format(",{}", 2 * i + 3 + 10 * (choice - right));
    csv += fmt::format(",{},{}\n", "ABCD"[right], i % 2 == 0 ? "even" : "odd");
  }
  return csv;
}

TEST(AblateCommand, MeasuresLayersOnQuestionsOfFourChoices) {
  const std::filesystem::path folder = fresh_directory();
  write_file_atomically(folder / "choices.csv", choice_questions(12));
  const auto ablated = [&](const std::string& task, const Words& more) {
    Words words = {"allot",  "ablate", "--model", kModel, "--data",    (folder / "choices.csv").string(),
                   "--task", task,     "--base",  "8",    "--answers", (folder / task).string(),
                   "--json"};
    words.insert(words.end(), more.begin(), more.end());
    const CommandResult result = run_command(words);
    EXPECT_EQ(result.code, 0) << result.err;
    return json::parse(result.out);
  };
  for (const auto& [task, more] : {std::pair<std::string, Words>{"mmlu-likelihood", {}},
                                   {"mmlu-deepseek", {"--max-new-tokens", "12"}}}) {
    const json result = ablated(task, more);
    EXPECT_EQ(result.at("conditions").at("task").at("name"), task);
    EXPECT_EQ(result.at("base").at("n"), 12);
    ASSERT_EQ(result.at("layers").size(), 8u);
    std::map<std::string, std::set<std::string>> replies;  // by schedule
    int likelihoods = 0;
    for (const json& row : json_lines(read_file(folder / task / "replies.jsonl"))) {
      replies[row.at("schedule")].insert(row.at("reply"));
      likelihoods += std::set<std::string>{" A", " B", " C", " D"}.contains(row.at("reply"));
    }
    EXPECT_EQ(replies.size(), 9u);
    EXPECT_EQ(likelihoods, task == "mmlu-likelihood" ? 9 * 12 : 0);
    // A layer's row is what its answers say.
    for (int layer = 0; layer < 8; ++layer) {
      int correct = 0;
      for (const json& row : json_lines(read_file(folder / task / "replies.jsonl")))
        correct += row.at("schedule") == fmt::format("one sample in layer {}", layer) &&
                   row.at("correct").get<bool>();
      EXPECT_EQ(result.at("layers").at(layer).at("correct"), correct) << task << ", layer " << layer;
    }
  }
}

}  // namespace
}  // namespace allot::app
