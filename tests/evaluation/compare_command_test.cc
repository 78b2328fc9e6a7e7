#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "base/file.h"
#include "tests/app/run_command.h"
#include "tests/names.h"

namespace allot::app {
namespace {

TEST(CompareCommand, WhatGradeKeepsIsComparedWithWhatEvalWrites) {
  const auto directory = fresh_directory();
  const std::string eval = directory / "eval.jsonl", engine = directory / "engine.jsonl";
  std::string details, replies;
  for (int question = 0; question < 8; ++question) {
    const std::string number = std::to_string(question);
    details += R"({"schedule":"dense","question":)" + number +
               R"(,"gold":"5","score":1,"reply":"\n#### 5"})"
               "\n";
    replies += R"({"question":)" + number + R"(,"prediction":"\n#### )" + (question == 6 ? "7" : "5") +
               R"(","answer":"5"})"
               "\n";
  }
  write_file_atomically(eval, details);
  const CommandResult graded = run_command({"allot", "grade", "--keep"}, replies);
  ASSERT_EQ(graded.code, 0) << graded.err;
  EXPECT_EQ(graded.out.substr(0, graded.out.find('\n')),
            R"({"question":0,"prediction":"\n#### 5","answer":"5","correct":1,"score":1.0})");
  write_file_atomically(engine, graded.out);

  const CommandResult text = run_command({"allot", "compare", eval, engine});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out,
              Names(eval, engine, "8 of 8", "7 of 8", "+12.5 points", "no difference", "7 of 8 questions"));
  EXPECT_THAT(text.out, testing::ContainsRegex("\n +6 +1 +0\n"));

  const auto json = nlohmann::json::parse(run_command({"allot", "compare", eval, engine, "--json"}).out);
  EXPECT_EQ(json["first"]["correct"], 8);
  EXPECT_EQ(json["second"]["accuracy"], 0.875);
  EXPECT_EQ(json["paired"]["difference"], 0.125);
  EXPECT_EQ(json["paired"]["only_first"], 1);
  EXPECT_EQ(json["within_interval"], true);
  EXPECT_EQ(json["same_replies"], 7);
  EXPECT_EQ(json["different"], nlohmann::json::parse(R"([{"question": 6, "first": 1.0, "second": 0.0}])"));
}

TEST(CompareCommand, TwoSchedulesOfOneFileAreCompared) {
  const auto directory = fresh_directory();
  const std::string file = directory / "eval.jsonl";
  std::string details;
  for (const auto& [schedule, score] : {std::pair("dense", "1"), std::pair("uniform:1", "0")})
    for (int question = 0; question < 20; ++question)
      details += std::string(R"({"schedule":")") + schedule + R"(","question":)" + std::to_string(question) +
                 R"(,"score":)" + score + "}\n";
  write_file_atomically(file, details);
  const CommandResult text =
      run_command({"allot", "compare", file, "--schedule", "dense", "--against", "uniform:1"});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, Names("+100.0 points", "better"));

  const CommandResult alone = run_command({"allot", "compare", file});
  EXPECT_EQ(alone.code, 2);
  EXPECT_THAT(alone.err, Names(file, "--schedule", "--against"));
  EXPECT_EQ(run_command({"allot", "compare"}).code, 2);
  const std::string other = directory / "other.jsonl";
  write_file_atomically(other, "{\"question\": 4, \"score\": 1}\n");
  const CommandResult mismatch = run_command({"allot", "compare", file, other, "--schedule", "dense"});
  EXPECT_EQ(mismatch.code, 3);
  EXPECT_THAT(mismatch.err, Names("20 replies", "1"));
}

}  // namespace
}  // namespace allot::app
