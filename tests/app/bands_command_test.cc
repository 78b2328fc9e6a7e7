// Schedules for lengths of prompts, with the embedded model: who follows them, and `tune --lengths`, which
// learns them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <sstream>

#include "app/files/schedule_file.h"
#include "base/file.h"
#include "base/json.h"
#include "model/model_config.h"
#include "tests/app/run_command.h"
#include "tests/names.h"

namespace allot::app {
namespace {

using Json = nlohmann::ordered_json;
using Words = std::vector<std::string>;

class BandsCommand : public ::testing::Test {
 protected:
  static std::filesystem::path model() { return std::filesystem::path(ALLOT_SOURCE_DIR) / "assets/tiny-gsm"; }
  // The first questions of a file of the model, from `first` on.
  std::string questions(const std::string& file, int first, int count) const {
    std::istringstream in(read_file(model() / file));
    std::string text, line;
    for (int i = 0; i < first + count && std::getline(in, line); ++i)
      if (i >= first) text += line + "\n";
    const std::string path = directory_ / file;
    write_file_atomically(path, text);
    return path;
  }
  static CommandResult run(const std::string& command, const Words& more) {
    Words words = {"allot", command, "--model", model()};
    words.insert(words.end(), more.begin(), more.end());
    return run_command(words);
  }
  struct Reply {
    int prompt_tokens = 0;
    std::string text;
  };
  // By question, under one schedule.
  std::vector<Reply> replies(const std::string& data, const std::string& schedule) const {
    const std::string details = directory_ / "details.jsonl";
    const auto result = run("eval", {"--data", data, "--estimator", "sys", "--schedule", schedule,
                                     "--details", details, "--max-new-tokens", "48"});
    EXPECT_EQ(result.code, 0) << result.err;
    std::istringstream rows(read_file(details));
    std::vector<Reply> found;
    for (std::string row; std::getline(rows, row);)
      found.push_back({Json::parse(row)["prompt_tokens"], Json::parse(row)["reply"]});
    return found;
  }
  // 2 samples a layer for prompts of at most `most` tokens, 24 for the others.
  std::string banded(int64_t most) const {
    ScheduleFile file;
    file.conditions.model = model::identify_model(model());
    file.conditions.task = {.name = "gsm8k", .version = 1, .prompt_style = "plain"};
    file.conditions.attention = {.estimator = kernels::Estimator::kSys};
    file.conditions.generation.max_new_tokens = 48;
    file.schedule = policy::uniform_schedule(file.conditions.model.layers, 24);
    file.total = file.schedule.total();
    file.bands = {
        {.most_tokens = most, .schedule = policy::uniform_schedule(file.conditions.model.layers, 2)}};
    file.run_id = "the-run";
    file.tool_version = "0.1.0";
    const std::string path = directory_ / "bands.json";
    write_schedule_file(path, file);
    return path;
  }

  std::filesystem::path directory_ = fresh_directory();
};

TEST_F(BandsCommand, EachPromptHasTheScheduleOfItsLengthInEvalAndGenerate) {
  const std::string data = questions("heldout.jsonl", 0, 12);
  const std::vector<Reply> few = replies(data, "uniform:2"), many = replies(data, "uniform:24");
  std::vector<int> lengths;
  for (const Reply& reply : few) lengths.push_back(reply.prompt_tokens);
  std::ranges::sort(lengths);
  const int most = lengths[5];
  const std::string schedule = banded(most);
  const std::vector<Reply> chosen = replies(data, schedule);
  const auto generated = run("generate", {"--file", data, "--field", "question", "--schedule", schedule});
  ASSERT_EQ(generated.code, 0) << generated.err;
  EXPECT_THAT(generated.err, Names("192 samples", "16 for prompts of at most", most));
  std::istringstream rows(generated.out);
  int differ = 0;
  ASSERT_EQ(chosen.size(), 12u);
  for (size_t i = 0; i < chosen.size(); ++i) {
    const Reply& wanted = few[i].prompt_tokens <= most ? few[i] : many[i];
    EXPECT_EQ(chosen[i].text, wanted.text) << i;
    std::string row;
    ASSERT_TRUE(std::getline(rows, row));
    EXPECT_EQ(Json::parse(row)["reply"], wanted.text) << i;
    differ += few[i].text != many[i].text;
  }
  EXPECT_GT(differ, 6);  // else the replies would tell nothing
}

TEST_F(BandsCommand, AnEvaluationInADirectoryKnowsTheBandsAndRefusesOthersUnderTheirName) {
  const std::string data = questions("heldout.jsonl", 0, 4);
  const Words again = {"--data", data, "--schedule", banded(60), "--run", directory_ / "evaluation"};
  ASSERT_EQ(run("eval", again).code, 0);
  EXPECT_EQ(Json::parse(read_file(directory_ /
                                  "evaluation/evaluation.json"))["schedules"][0]["bands"][0]["most_tokens"],
            60);
  EXPECT_EQ(run("eval", again).code, 0);
  banded(61);
  const auto other = run("eval", again);
  EXPECT_EQ(other.code, 3);
  EXPECT_THAT(other.err, Names("other samples", "61"));
}

TEST_F(BandsCommand, CommandsThatNeedOneScheduleRefuseBands) {
  const std::string data = questions("heldout.jsonl", 0, 4), schedule = banded(60);
  for (const Words& words : std::vector<Words>{
           {"verify", "--data", data, "--schedule", schedule},
           {"ablate", "--data", data, "--base", schedule},
           {"eval", "--data", data, "--schedule", schedule, "--executed-out", directory_ / "executed.json"},
           {"eval", "--data", data, "--schedule", schedule, "--run", directory_ / "leased", "--bind",
            "tcp://127.0.0.1:*"},
           {"export", "--schedule", schedule}}) {
    const auto result = run(words[0], Words(words.begin() + 1, words.end()));
    EXPECT_NE(result.code, 0) << words[0];
    EXPECT_THAT(result.err, Names("2 lengths of prompts", "choose by length")) << words[0];
  }
  const auto inspected = run_command({"allot", "inspect", schedule, "--json"});
  EXPECT_EQ(inspected.code, 0) << inspected.err;
  EXPECT_THAT(inspected.out, Names("most_tokens", 60));
}

TEST_F(BandsCommand, TuneLearnsAScheduleForEachLengthAndSaysWhetherThatPays) {
  const std::string data = questions("train.jsonl", 0, 48), heldout = questions("heldout.jsonl", 0, 24);
  std::vector<int> lengths;
  for (const Reply& reply : replies(data, "dense")) lengths.push_back(reply.prompt_tokens);
  for (const Reply& reply : replies(heldout, "dense")) lengths.push_back(reply.prompt_tokens);
  std::ranges::sort(lengths);
  const int middle = lengths[lengths.size() / 2], longest = lengths.back();
  const std::filesystem::path all = directory_ / "all";
  const auto tune = [&](int last) {
    return run("tune", {"--data",
                        data,
                        "--heldout",
                        heldout,
                        "--run",
                        all,
                        "--lengths",
                        std::to_string(middle) + "," + std::to_string(last),
                        "--total",
                        "64",
                        "--estimator",
                        "sys",
                        "--policy",
                        "pairs",
                        "--episodes",
                        "4",
                        "--questions",
                        "4",
                        "--preflight",
                        "0",
                        "--max-new-tokens",
                        "48",
                        "--json"});
  };
  const auto too_short = tune(longest - 1);
  EXPECT_EQ(too_short.code, 2);
  EXPECT_THAT(too_short.err, Names("tokens", longest, longest - 1));

  const auto result = tune(longest);
  ASSERT_EQ(result.code, 0) << result.err;
  const Json json = Json::parse(result.out);
  EXPECT_EQ(json, Json::parse(read_file(all / "lengths.json")));
  ASSERT_EQ(json["schedules"].size(), 3u);  // uniform, and one for each length
  int64_t asked = 0;
  for (const Json& band : json["schedules"][0]["by_length"]) asked += band["n"].get<int64_t>();
  EXPECT_EQ(asked, 24);
  // Every question is in the band of its length, and the schedules are those of the runs.
  for (const int most : {middle, longest}) {
    const std::string name = "up-to-" + std::to_string(most);
    for (const Reply& reply : replies(all / (name + "-data.jsonl"), "dense")) {
      EXPECT_LE(reply.prompt_tokens, most);
      EXPECT_EQ(reply.prompt_tokens > middle, most == longest);
    }
    const ScheduleFile learned = read_schedule_file(all / name / "schedule.json");
    EXPECT_EQ(json["schedules"][most == middle ? 1 : 2]["samples"], Json(learned.schedule.samples));
  }
  // What is written is what the verdict says.
  const ScheduleFile written = read_schedule_file(all / "schedule.json", Bands::kFollowed);
  EXPECT_EQ(written.bands.empty(), !json["bands_pay"].get<bool>());
  EXPECT_EQ(tune(longest).out, result.out);  // nothing is done again

  // Answers of which each schedule has those of its own length right, and no others.
  for (const int most : {middle, longest}) {
    const std::filesystem::path band = all / ("up-to-" + std::to_string(most));
    std::istringstream lines(read_file(band / "lengths/replies.jsonl"));
    std::string changed;
    for (std::string line; std::getline(lines, line);) {
      Json answer = Json::parse(line);
      const bool own = answer["schedule"] == (band / "schedule.json").string();
      answer["score"] = own ? 1.0 : 0.0;
      answer["correct"] = own;
      changed += answer.dump() + "\n";
    }
    write_file_atomically(band / "lengths/replies.jsonl", changed);
  }
  const Json pays = Json::parse(tune(longest).out);
  EXPECT_TRUE(pays["bands_pay"]);
  EXPECT_EQ(pays["by_length"]["accuracy"], 1.0);
  const ScheduleFile file = read_schedule_file(all / "schedule.json", Bands::kFollowed);
  ASSERT_EQ(file.bands.size(), 1u);
  EXPECT_EQ(file.bands[0].most_tokens, middle);
  const auto learned = [&](int most) {
    return read_schedule_file(all / ("up-to-" + std::to_string(most)) / "schedule.json").schedule;
  };
  EXPECT_EQ(file.bands[0].schedule, learned(middle));
  EXPECT_EQ(file.schedule, learned(longest));
  EXPECT_EQ(file.evaluation.learned->correct, 24);
  EXPECT_EQ(file.evaluation.uniform->correct, 0);
  EXPECT_EQ(file.conditions.learned_on->questions, 48);
  EXPECT_EQ(run("eval", {"--data", heldout, "--limit", "2", "--schedule", all / "schedule.json"}).code, 0);
}

}  // namespace
}  // namespace allot::app
