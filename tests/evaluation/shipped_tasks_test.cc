// The tasks that come as task files: prompts as the S2ANTA paper's tables have them, and hand-made replies
// with the grades that the tables' words give them.
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "base/temporary_directory.h"
#include "evaluation/task.h"
#include "tests/evaluation/expect_letters.h"
#include "tests/message_of.h"
#include "tests/names.h"

namespace allot::evaluation {
namespace {

using testing::AllOf;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

TEST(ShippedTasks, AreTaskFilesOfTheirNames) {
  EXPECT_GE(shipped_task_names().size(), 9u);
  for (const std::string& name : shipped_task_names()) {
    const auto task = shipped(name);
    EXPECT_EQ(task->name(), name);
    EXPECT_GE(task->version(), 1);
    EXPECT_FALSE(task->definition().empty());
  }
  EXPECT_THAT(message_of<UsageError>([] { (void)read_task_definition("mmlu"); }),
              Names("mmlu", "gsm8k", "humaneval", "mmlu-llama", "ruler-qa"));
}

const std::string kMmluRows =
    "What is 2 + 2?,3,4,5,6,B\n\"Which of these, if any, is a city?\",Paris,\"tea, hot\",blue,seven,A\n";

Dataset load_rows(const Task& task, const std::string& name, const std::string& rows,
                  const FieldNames& fields = {}) {
  const TemporaryDirectory directory;
  write_file_atomically(directory.path() / name, rows);
  return task.load(directory.path() / name, fields);
}

TEST(Mmlu, ReadsThePublishedFilesAndAsksAsTheTables) {
  for (const char* name : {"mmlu-deepseek", "mmlu-llama", "mmlu-chat", "mmlu-likelihood"}) {
    const auto task = shipped(name);
    const Dataset data = load_rows(*task, "anatomy_test.csv", kMmluRows);
    ASSERT_EQ(data.questions.size(), 2u);
    EXPECT_EQ(data.questions[0].answer, "B");
    EXPECT_EQ(data.questions[1].answer, "A");
    EXPECT_THAT(task->prompt(data.questions[1]),
                HasSubstr("Which of these, if any, is a city?\nA. Paris\nB. tea, hot\nC. blue\nD. seven"));
  }
  const auto deepseek = shipped("mmlu-deepseek"), llama = shipped("mmlu-llama");
  const Question question = load_rows(*llama, "a.csv", kMmluRows).questions[0];
  EXPECT_THAT(
      deepseek->prompt(question),
      AllOf(HasSubstr("\n\nAnswer briefly. Put your final answer as a single letter inside \\boxed{}."),
            EndsWith("<think>\n")));
  EXPECT_THAT(
      llama->prompt(question),
      AllOf(StartsWith("<|start_header_id|>system<|end_header_id|>\n\nYou are a knowledgeable and concise "
                       "subject-matter expert. Work through the problem step by step. Finally, on a new "
                       "line, output ONLY the single capital letter (A, B, C, or D) that corresponds to the "
                       "correct choice.<|eot_id|>"),
            EndsWith("<|start_header_id|>assistant<|end_header_id|>\n\n")));
  EXPECT_FALSE(llama->message());
  EXPECT_TRUE(shipped("mmlu-chat")->message());
  EXPECT_EQ(llama->generation_defaults().max_new_tokens, 1024);
  EXPECT_EQ(deepseek->generation_defaults().temperature, 0.6);
  EXPECT_THAT(message_of<CorruptFile>([&] { load_rows(*llama, "a.csv", "q,a,b,c,B\n"); }),
              Names("a.csv", "line 1", 5, "columns", 6, 7));
  EXPECT_THAT(message_of<CorruptFile>([&] { load_rows(*llama, "a.csv", "q,a,b,c,d,E\n"); }),
              Names("E", "ABCD"));
}

TEST(Mmlu, ASeventhColumnIsTheSubject) {
  for (const char* name : {"mmlu-deepseek", "mmlu-llama", "mmlu-chat", "mmlu-likelihood"}) {
    const auto task = shipped(name);
    EXPECT_THAT(task->by(), testing::ElementsAre("subject"));
    const Dataset data = load_rows(*task, "a.csv", "q,a,b,c,d,B,anatomy\nq,a,b,c,d,C\n");
    EXPECT_EQ(data.questions.at(0).fields.at("subject"), "anatomy");
    EXPECT_FALSE(data.questions.at(1).fields.contains("subject"));
  }
}

TEST(Mmlu, LikelihoodChoosesAmongTheLetters) {
  const auto task = shipped("mmlu-likelihood");
  EXPECT_THAT(task->continuations(), testing::ElementsAre(" A", " B", " C", " D"));
  const Question question = load_rows(*task, "a.csv", kMmluRows).questions[0];
  EXPECT_THAT(task->prompt(question), EndsWith("\nD. 6\nAnswer:"));
  EXPECT_EQ(task->grade(question, " B").score, 1);
  EXPECT_EQ(task->grade(question, " C").score, 0);
  EXPECT_TRUE(shipped("mmlu-llama")->continuations().empty());
}

// tests/data/replies: hand-made replies, a file for each task, with what the words of the paper's table (of
// mmlu-chat and ruler-qa the task's README) find in each of them.
std::vector<nlohmann::json> golden_replies(const std::string& task) {
  const std::string text =
      read_file(std::filesystem::path(ALLOT_SOURCE_DIR) / "tests/data/replies" / (task + ".jsonl"));
  std::vector<nlohmann::json> rows;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) rows.push_back(nlohmann::json::parse(line));
  EXPECT_GE(rows.size(), 60u) << task;
  return rows;
}

TEST(Mmlu, LettersOfRepliesAreThoseFoundByHand) {
  for (const char* name : {"mmlu-llama", "mmlu-deepseek", "mmlu-chat"}) {
    std::vector<LetterCase> cases;
    for (const nlohmann::json& row : golden_replies(name)) {
      const nlohmann::json& letter = row.at("letter");
      cases.push_back(
          {.reply = row.at("reply"), .letter = letter.is_null() ? '\0' : letter.get<std::string>().at(0)});
    }
    SCOPED_TRACE(name);
    expect_letters(name, cases);
  }
}

TEST(Ruler, ScoresOfRepliesAreThoseFoundByHand) {
  for (const char* name : {"ruler-fwe", "ruler-niah-multivalue", "ruler-qa"}) {
    const auto task = shipped(name);
    for (const nlohmann::json& row : golden_replies(name)) {
      const std::vector<std::string> answers = row.at("answers");
      const Question question = task->gold(fmt::format("{}", fmt::join(answers, "\n")));
      const bool one_of_them = task->name() == "ruler-qa";
      const double right = row.at("right").get<double>();
      EXPECT_DOUBLE_EQ(task->grade(question, row.at("reply").get<std::string>()).score,
                       one_of_them ? right : right / static_cast<double>(answers.size()))
          << name << ": " << row;
    }
  }
}

// RULER's generator writes {"index", "input", "outputs": [...], "length"}.
const FieldNames kRulerFields = {.question = "input", .answer = "outputs"};

Question ruler_question(const Task& task, const std::string& outputs) {
  const Dataset data = load_rows(
      task, "validation.jsonl",
      R"({"index": 0, "input": "Find them.", "outputs": )" + outputs + R"(, "length": 4096})", kRulerFields);
  EXPECT_EQ(task.prompt(data.questions.at(0)), "Find them.");
  EXPECT_EQ(task.generation_defaults().max_new_tokens, 64);
  EXPECT_EQ(task.generation_defaults().temperature, 0);
  return data.questions.at(0);
}

TEST(Ruler, AReplyWithoutAnIntegerHasNoAnswer) {
  const auto task = shipped("ruler-niah-multivalue");
  const Question question = ruler_question(*task, R"(["8231", "77", "4096", "123456"])");
  EXPECT_TRUE(task->grade(question, "5").extracted);
  EXPECT_FALSE(task->grade(question, "none").extracted);
}

TEST(Ruler, AnswersStandForThemselves) {
  const auto task = shipped("ruler-qa");
  const Question question = ruler_question(*task, R"(["Denver Broncos", "the Broncos", 50])");
  EXPECT_EQ(task->grade(question, "Super Bowl 50").score, 1) << "a number is an answer, too";
  const Question other = ruler_question(*task, R"json(["Zürich (ZH)", "N.Y. \\d+"])json");
  EXPECT_EQ(task->grade(other, "in ZÜRICH (zh)!").score, 1);
  EXPECT_EQ(task->grade(other, "in Zürich ZH").score, 0) << "brackets stand for themselves";
  EXPECT_EQ(task->grade(other, "n.y. \\D+").score, 1);
  EXPECT_EQ(task->grade(other, "NxYx 55").score, 0);
  EXPECT_EQ(task->grade(other, "Z\xff zürich (zh)").score, 1) << "bytes that are no character do no harm";
  const Question bare = load_rows(*task, "a.jsonl", R"({"question": "Who?", "answer": "Ada"})").questions[0];
  EXPECT_EQ(task->grade(bare, "ada lovelace").score, 1);
  EXPECT_THAT(message_of<CorruptFile>([&] { (void)ruler_question(*task, "[]"); }),
              Names("line 1", "outputs", "list"));
  EXPECT_THAT(message_of<CorruptFile>([&] { (void)ruler_question(*task, R"(["a", ""])"); }),
              Names("line 1", "outputs"));
}

}  // namespace
}  // namespace allot::evaluation
