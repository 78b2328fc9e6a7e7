// The tasks that come as task files: prompts as the S2ANTA paper's tables have them, and hand-made replies
// with the grades that the tables' words give them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

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
    EXPECT_EQ(task->version(), 1);
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

// Table 24: the first A-D, of either case, behind the last newline; without one the last A-D of the final ten
// words.
TEST(Mmlu, LlamaRepliesAreReadAsInTable24) {
  expect_letters("mmlu-llama", {{"So it is 4.\n\nB", 'B'},
                                {"B", 'B'},
                                {"Thinking it over\nC.", 'C'},
                                {"Thinking it over\n**D**", 'D'},
                                {"Text\n(a)", 'A'},
                                {"Text\nSo C it is, not D", 'C'},
                                {"Text\n12 C", 'C'},
                                {"Text\nThe answer is D", 'A'},  // "answer" begins with one
                                {"Text\nB\n", 'B'},  // the last line is empty: the final ten words
                                {"I say C\n", 'C'},
                                {"One, two, D\n?!", 'D'},
                                {"X B one two three four five six seven\n", 'B'},
                                {"B o t t f f s s n t e\n", 0},  // eleven words
                                {"B o t t f f s s n t\n", 'B'},  // ten
                                {"\n", 0},
                                {"", 0},
                                {"Hmm\n...", 0},
                                {"xyz\nno", 0},
                                {"Right:\n$\\text{C}$", 'C'},
                                {"Left A\nRight: D", 'D'},
                                {"first line: D\nthis is it", 'D'},
                                {"It could be A or B.\n\nC)", 'C'},
                                {"Reasons\nd", 'D'},
                                {"Answer: (B) because\n(B)", 'B'},
                                {"So:\n\n  A  ", 'A'},
                                {"a\nb\nc\nd", 'D'},
                                {"The choices are A, B and C\n\n", 'C'},
                                {"Yes\nNo", 0}});
}

// Table 22: the last box; without any box the last A-D of the final 300 characters.
TEST(Mmlu, DeepseekRepliesAreReadAsInTable22) {
  const std::string far(300, '.');
  expect_letters("mmlu-deepseek", {{"<think>hm</think> So \\boxed{B}.", 'B'},
                                   {"\\boxed{A} no, \\boxed{C}", 'C'},
                                   {"\\boxed{\\text{D}}", 'D'},
                                   {"\\boxed{\\mathrm{ A }}", 'A'},
                                   {"\\boxed{(B)}", 'B'},
                                   {"\\boxed{ c }", 'C'},
                                   {"\\boxed{D. seven}", 'D'},
                                   {"\\boxed{$A$}", 'A'},
                                   {"\\boxed{B} and all else is dead code", 'B'},
                                   {"\\boxed{4}", 0},
                                   {"\\boxed{}", 0},
                                   {"\\boxed{A} then \\boxed{7}", 0},
                                   {"\\boxed{Blue}", 0},
                                   {"So I say: B", 'B'},
                                   {"I think C is right", 'C'},
                                   {"Answer: (d) !!", 'D'},
                                   {"B" + far.substr(1), 'B'},
                                   {"B" + far, 0},
                                   {"", 0},
                                   {"0 1 2", 0},
                                   {"\\boxed{\\text{(C)}}", 'C'},
                                   {"\\boxed{B}\\boxed{}", 0},
                                   {"<think>\\boxed{A}</think> The answer: D", 'A'},
                                   {"my answer: d", 'D'}});
}

TEST(Mmlu, OfOtherChatModelsOnlyTheBoxCounts) {
  expect_letters("mmlu-chat", {{"So \\boxed{B}.", 'B'},
                               {"\\boxed{A} no, \\boxed{\\textbf{C}}", 'C'},
                               {"\\boxed{d}", 'D'},
                               {"The answer is B", 0},
                               {"B", 0},
                               {"\\boxed{E}", 0},
                               {"\\boxed{A} \\boxed{none}", 0},
                               {"\\boxed{ \\textbf{b} }", 'B'},
                               {"\\boxed{Because}", 0},
                               {"", 0}});
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

TEST(Ruler, FrequentWordsGiveTheShareThatIsThere) {
  const auto task = shipped("ruler-fwe");
  const Question question = ruler_question(*task, R"(["skvbe", "Wojhte", "qrst"])");
  for (const auto& [reply, found] : std::vector<std::pair<std::string, int>>{
           {"skvbe, wojhte, qrst", 3},
           {"QRST and SKVBE", 2},
           {"1. wojhte\n2. wojhte", 1},
           {"Answer: xskvbey", 1},  // within a word, as RULER's scoring has it
           {"skvb e", 0},
           {"", 0},
           {"skvbe wojhte qrst and more words", 3},
           {"SKVBE", 1},
           {"skvbe\nqrst", 2},
           {"s-k-v-b-e", 0},
           {"qrstwojhteskvbe", 3},
           {"The words: 'wojhte', 'skvbe'.", 2},
           {"skvb qrs wojht", 0},
           {"qrst qrst qrst", 1},
           {"I cannot tell", 0},
           {"wojhté", 0},
           {"Wojhte;Skvbe;Qrst;Abcd", 3},
           {"Q R S T", 0},
           {"qrst,", 1},
           {"wojhte", 1}})
    EXPECT_DOUBLE_EQ(task->grade(question, reply).score, found / 3.0) << reply;
}

TEST(Ruler, ValuesOfNeedlesAreTheFirstFourIntegers) {
  const auto task = shipped("ruler-niah-multivalue");
  const Question question = ruler_question(*task, R"(["8231", "77", "4096", "123456"])");
  for (const auto& [reply, found] :
       std::vector<std::pair<std::string, int>>{{"8231, 77, 4096 and 123456.", 4},
                                                {"They are 123456, 4096, 77, 8231", 4},
                                                {"8231, 8231, 8231, 77", 2},  // once each
                                                {"1. 8231 2. 77", 2},  // the first four: 1, 8231, 2, 77
                                                {"1, 2, 3, 4, 8231, 77, 4096, 123456", 0},
                                                {"8231 and 5, 6, 7", 1},
                                                {"82310 770", 0},
                                                {"-77", 1},
                                                {"4,096", 0},
                                                {"", 0},
                                                {"none", 0},
                                                {"77", 1},
                                                {"8231 and 77 and 8231 and 4096 and 123456", 4},
                                                {"#8231#77", 2},
                                                {"8231.77", 2},
                                                {"00077", 0},
                                                {"1 8231 77 4096 123456", 3},
                                                {"8231a77b", 2},
                                                {"123456 is first, then 5, then 77", 2},
                                                {"8 2 3 1", 0},
                                                {"-8231, +77", 2},
                                                {"4096/8231", 2},
                                                {"七十七", 0},
                                                {"77 77 4096 4096 123456 8231", 4}})
    EXPECT_DOUBLE_EQ(task->grade(question, reply).score, found / 4.0) << reply;
  EXPECT_FALSE(task->grade(question, "none").extracted);
}

TEST(Ruler, QuestionsAreRightWithOneOfTheirAnswers) {
  const auto task = shipped("ruler-qa");
  const Question question = ruler_question(*task, R"(["Denver Broncos", "the Broncos", 50])");
  for (const auto& [reply, score] :
       std::vector<std::pair<std::string, double>>{{"The denver broncos won.", 1},
                                                   {"It was The Broncos", 1},
                                                   {"Super Bowl 50", 1},
                                                   {"broncos of Denver", 0},
                                                   {"Denver  Broncos", 0},
                                                   {"", 0},
                                                   {"1503", 1},
                                                   {"DENVER BRONCOS", 1},
                                                   {"Denver, Broncos", 0},
                                                   {"5 0", 0},
                                                   {"I think the broncos did", 1},
                                                   {"fifty", 0},
                                                   {"$50", 1},
                                                   {"Denver's Broncos", 0},
                                                   {"xthe broncosx", 1},
                                                   {"team: Denver Broncos.", 1},
                                                   {"the  Broncos", 0},
                                                   {"the\nBroncos", 0},
                                                   {"Carolina", 0}})
    EXPECT_EQ(task->grade(question, reply).score, score) << reply;
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
