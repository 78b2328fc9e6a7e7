// eval of long contexts and of parts of a test set, on the embedded model, as people run it.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/json.h"
#include "tests/app/run_command.h"
#include "tests/evaluation/tiny_gsm_commands.h"
#include "tests/names.h"

namespace allot::app {
namespace {

using nlohmann::json;
using testing::HasSubstr;

// The longest contexts of the embedded model, which has 1,024 positions.
TEST(EvalCommand, AsksTheContextsThatAllotMakes) {
  const std::string data = fresh_directory() / "contexts.jsonl";
  const CommandResult made = run_command(
      {"allot", "contexts", "--task", "ruler-fwe", "--model", kModel, "--tokens", "1024", "--count", "2"});
  ASSERT_EQ(made.code, 0) << made.err;
  write_file_atomically(data, made.out);
  const CommandResult result =
      run_command({"allot", "eval", "--model", kModel, "--data", data, "--task", "ruler-fwe",
                   "--question-field", "input", "--answer-field", "outputs", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const json schedule = json::parse(result.out).at("schedules")[0];
  EXPECT_EQ(schedule.at("n"), 2);
  int64_t lengths = 0;
  for (const json& row : json_lines(made.out)) lengths += row.at("length").get<int64_t>();
  EXPECT_EQ(schedule.at("prompt_tokens"), lengths - 2 * 64);
  EXPECT_GE(lengths, 2 * 1010);
  EXPECT_LE(lengths, 2 * 1024) << "a reply has room";
}

// tiny-gsm with fields to average by, long prompts, and its rows as a JSON list.
TEST(EvalCommand, GivesAccuracyByFieldsAndTheTokensThatWereScored) {
  const std::filesystem::path directory = fresh_directory();
  json task = json::parse(read_file(std::string(ALLOT_SOURCE_DIR) + "/configs/tasks/tiny-gsm.json"));
  task["name"] = "mine";
  task["by"] = {"length", "missing"};
  std::vector<json> rows = json_lines(read_file(kData));
  rows.resize(8);
  for (size_t i = 0; i < rows.size(); ++i) rows[i]["length"] = i % 4 == 0 ? "short" : "a longer one";
  const std::string data = directory / "rows.json", file = directory / "mine.json";
  write_file_atomically(data, json(rows).dump(1));
  write_file_atomically(file, task.dump());
  const Words words = {
      "allot", "eval",       "--model", kModel,       "--data",    data,        "--task",
      file,    "--schedule", "dense",   "--schedule", "uniform:2", "--details", directory / "details.jsonl"};
  Words as_json = words;
  as_json.emplace_back("--json");
  const CommandResult result = run_command(as_json);
  ASSERT_EQ(result.code, 0) << result.err;
  const json schedules = json::parse(result.out).at("schedules");
  std::map<std::string, double> sums;  // by schedule and length
  for (const json& line : json_lines(read_file(directory / "details.jsonl")))
    sums[line.at("schedule").get<std::string>() + "/" +
         rows[line.at("question").get<size_t>()]["length"].get<std::string>()] +=
        line.at("score").get<double>();
  for (const json& schedule : schedules) {
    const std::string label = schedule.at("schedule");
    const json& by = schedule.at("by");
    EXPECT_EQ(by.size(), 1u) << "no row has the other field";
    EXPECT_EQ(by.at("length").at("short").at("n"), 2);
    EXPECT_EQ(by.at("length").at("a longer one").at("n"), 6);
    EXPECT_EQ(by.at("length").at("short").at("accuracy"), sums[label + "/short"] / 2);
    EXPECT_EQ(by.at("length").at("a longer one").at("accuracy"), sums[label + "/a longer one"] / 6);
    EXPECT_EQ(schedule.at("scored_tokens").get<double>(),
              (schedule.at("prompt_tokens").get<double>() + schedule.at("output_tokens").get<double>()) / 8);
  }
  const CommandResult table = run_command(words);
  EXPECT_THAT(table.out,
              testing::ContainsRegex("\nlength        schedule  +n  correct  accuracy.*\n"
                                     "a longer one  dense      +6 .*\na longer one  uniform:2  +6 .*\n"
                                     "short         dense      +2 .*\nshort         uniform:2  +2 "));
  EXPECT_THAT(table.out, HasSubstr(fmt::format("{:.1f}", schedules[0].at("scored_tokens").get<double>())));

  // A cut of every prompt, which takes what the questions say.
  task["truncate"] = {{"at", "middle"}, {"tokens", 40}};
  write_file_atomically(file, task.dump());
  const CommandResult cut = run_command(as_json);
  ASSERT_EQ(cut.code, 0) << cut.err;
  EXPECT_THAT(cut.err, Names("8 of 8"));
  EXPECT_EQ(json::parse(cut.out).at("schedules")[0].at("prompt_tokens"), 8 * 40);
}

}  // namespace
}  // namespace allot::app
