// Tasks from files: what is read, asked, found in replies and graded. Programs are in grader_process_test.cc.
#include "evaluation/file_task.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/file.h"
#include "base/sha256.h"
#include "base/temporary_directory.h"
#include "evaluation/conditions.h"
#include "tests/message_of.h"
#include "tests/names.h"

namespace allot::evaluation {
namespace {

const std::filesystem::path kRoot = ALLOT_SOURCE_DIR;
const std::filesystem::path kExample = kRoot / "configs/tasks/tiny-gsm.json";

// A task whose file has these fields besides the ones that every file has.
FileTask task_with(const std::string& more, const std::string& prompt = "{question}") {
  return FileTask(
      "{\"allot_task\": 1, \"name\": \"mine\", \"version\": 1, \"prompt\": \"" + prompt + "\", " + more + "}",
      nullptr);
}

std::string fault_of(const std::string& more, const std::string& prompt = "{question}") {
  return message_of<CorruptFile>([&] { task_with(more, prompt); });
}

Dataset load_text(const Task& task, const std::string& content) {
  const TemporaryDirectory directory;
  write_file_atomically(directory.path() / "data.jsonl", content);
  return task.load(directory.path() / "data.jsonl");
}

Question with_answer(const std::string& answer) {
  return {.text = "", .solution = "", .answer = answer};
}

const std::string kExact = R"("grade": {"by": "exact"})";

TEST(FileTask, TheExampleGradesRepliesAsTheTaskOfAllotDoes) {
  const auto own = make_task({"", "", read_file(kExample)});
  const auto allots = make_task("gsm8k", PromptStyle::kPlain);
  const std::filesystem::path data = kRoot / "assets/tiny-gsm/heldout.jsonl";
  const Dataset questions = own->load(data), expected = allots->load(data);
  ASSERT_EQ(questions.questions.size(), expected.questions.size());
  EXPECT_EQ(questions.sha256, expected.sha256);
  int right = 0, found = 0;
  for (size_t i = 0; i < questions.questions.size(); ++i) {
    const Question& here = questions.questions[i];
    const Question& there = expected.questions[i];
    ASSERT_EQ(own->prompt(here), allots->prompt(there));
    ASSERT_EQ(here.answer, there.answer);
    ASSERT_EQ(here.solution, there.solution);
    const std::string& other = expected.questions[(i + 1) % expected.questions.size()].solution;
    for (const std::string& reply :
         {there.solution, other, there.solution + "\nMore #### 1\n", std::string("I do not know"),
          "So #### $" + there.answer + ".00 dollars\n", std::string("#### ten"),
          std::string("a #### \n#### 3"), there.solution + "%", std::string("#### \xff")}) {
      const Grade one = own->grade(here, reply), two = allots->grade(there, reply);
      ASSERT_EQ(one.score, two.score) << reply;
      ASSERT_EQ(one.extracted, two.extracted) << reply;
      right += one.score == 1;
      found += one.extracted;
    }
  }
  EXPECT_GE(right, 3 * std::ssize(questions.questions));
  EXPECT_LE(found, 7 * std::ssize(questions.questions));
}

TEST(FileTask, APromptTakesTheFieldsThatItNames) {
  const FileTask task = task_with(kExact, "<{topic}> {question}\\n{{A}}: ");
  const Dataset data =
      load_text(task, "{\"question\": \"How {many}?\", \"answer\": 5, \"topic\": \"sums\", \"other\": []}\n");
  ASSERT_EQ(data.questions.size(), 1u);
  EXPECT_EQ(task.prompt(data.questions[0]), "<sums> How {many}?\n{A}: ");
  EXPECT_EQ(data.questions[0].answer, "5");
  EXPECT_EQ(data.questions[0].solution, "") << "without a pattern for it the answer is no worked solution";
  EXPECT_THAT(message_of<CorruptFile>([&] { load_text(task, "{\"question\": \"a\", \"answer\": \"b\"}"); }),
              Names("data.jsonl", "line 1", "topic"));
}

TEST(FileTask, CsvAndNamedFieldsGiveTheSamePromptsAndNeverTheAnswer) {
  const FileTask task = task_with(kExact, "<{topic}> {question}");
  const TemporaryDirectory directory;
  const auto file = directory.path() / "data.csv";
  write_file_atomically(file, "topic,problem,key\nsums,\"2, and 2?\",4\n");
  const Dataset data = task.load(file, {.question = "problem", .answer = "key"});
  ASSERT_EQ(data.questions.size(), 1u);
  EXPECT_EQ(task.prompt(data.questions[0]), "<sums> 2, and 2?");
  EXPECT_EQ(data.questions[0].answer, "4");
  EXPECT_THAT(
      message_of<UsageError>([&] { (void)task.load(file, {.question = "problem", .answer = "topic"}); }),
      Names("mine", "topic", "--answer-field"));
}

TEST(FileTask, WhatIsWrongWithAFileIsListed) {
  EXPECT_THAT(message_of<CorruptFile>([] { FileTask("{", nullptr); }), testing::HasSubstr("not JSON"));
  EXPECT_THAT(fault_of(kExact, "no field"), Names("prompt", "question"));
  EXPECT_THAT(fault_of(kExact, "{question} \\\\boxed{}"), Names("prompt", "17", "{{"));
  EXPECT_THAT(fault_of(kExact, "{question} {answer}"), Names("prompt", "answer"));
  EXPECT_THAT(fault_of(R"("grade": {"by": "vibes"}, "stop": "x", "typo": 1)"),
              Names("vibes", "choice", "stop", "typo", 3));
  EXPECT_THAT(fault_of(kExact + R"(, "extract": {"pattern": "a(b", "take": "middle"})"),
              Names("extract.pattern", "a(b", "byte 3", "extract.take", "middle"));
  EXPECT_THAT(fault_of(R"("grade": {"by": "choice", "choices": "A-D"})"), Names("grade.choices", "A-D"));
  EXPECT_THAT(message_of<CorruptFile>([] {
                FileTask(R"({"allot_task": 2, "name": "gsm8k", "version": 1, "prompt": "{question}",
                             "grade": {"by": "exact"}})",
                         nullptr);
              }),
              Names("allot_task", 2, "gsm8k"));
  EXPECT_THAT(message_of<CorruptFile>([] { FileTask(std::string(70'000, ' '), nullptr); }),
              Names(70'000, 65'536));
}

TEST(FileTask, RepliesEndAtTheFirstStopString) {
  const FileTask task = task_with(R"("stop": ["\nQ:", "END"], "grade": {"by": "exact"})");
  EXPECT_EQ(task.generation_defaults().stop, StopRule::kAnswer);
  EXPECT_EQ(task.completing_characters(), ":D");
  EXPECT_FALSE(task.complete("5\nQ"));
  EXPECT_TRUE(task.complete("5\nQ: more"));
  EXPECT_EQ(task.grade(with_answer("5"), " 5\nQ: 6 END").score, 1);
  EXPECT_EQ(task.grade(with_answer("5"), "5 6").score, 0);
  EXPECT_EQ(task_with(kExact).generation_defaults().stop, StopRule::kEos);
}

TEST(FileTask, ExactAnswersMayDifferInCaseWhereTheFileSaysSo) {
  EXPECT_EQ(task_with(kExact).grade(with_answer("Paris"), " paris\n").score, 0);
  const FileTask task = task_with(R"("grade": {"by": "exact", "ignore_case": true})");
  EXPECT_EQ(task.grade(with_answer("Paris"), " paris\n").score, 1);
  EXPECT_FALSE(task.grade(with_answer("Paris"), " \n").extracted);
}

TEST(FileTask, AChoiceIsOneOfTheLetters) {
  const FileTask task = task_with(
      R"json("extract": {"pattern": "(?i)answer is (\\S+)", "take": "last"}, "grade": {"by": "choice", "choices": "ABCD"})json");
  const Question gold = task.gold("(b)");
  EXPECT_EQ(task.grade(gold, "The answer is A. No, the answer is **(B)**.").score, 1);
  EXPECT_EQ(task.grade(gold, "the answer is B, no, the answer is C").score, 0);
  EXPECT_TRUE(task.grade(gold, "the answer is C").extracted);
  EXPECT_FALSE(task.grade(gold, "the answer is E").extracted);
  EXPECT_FALSE(task.grade(gold, "B").extracted);
  EXPECT_THAT(message_of<InvalidArgument>([&] { (void)task.gold("E"); }), Names("E", "ABCD"));
}

TEST(FileTask, APatternThatNeverEndsIsAFailureThatNamesTheQuestion) {
  const FileTask task = task_with(R"("extract": {"pattern": "(?:a+)+[bc]"}, "grade": {"by": "exact"})");
  Question question = with_answer("5");
  question.id = 17;
  question.text = "How many?";
  EXPECT_THAT(message_of<GradingFailure>([&] { (void)task.grade(question, std::string(40, 'a')); }),
              Names("mine", 17, "How many?", "(?:a+)+[bc]", kMostPatternSteps));
  const FileTask empty =
      task_with(R"("extract": {"pattern": "x*", "take": "last"}, "grade": {"by": "exact"})");
  EXPECT_THAT(message_of<GradingFailure>([&] { (void)empty.grade(question, std::string(20'000, 'a')); }),
              Names(kMostMatches, 20'000));
}

TEST(Pattern, GivesTheGroupOfTheFirstOrTheLastMatch) {
  const Pattern word(R"((\w+)!)");
  EXPECT_EQ(word.first("no! é! end"), "no");
  EXPECT_EQ(word.last("no! é! end"), "é");
  EXPECT_EQ(word.last("nothing"), std::nullopt);
  EXPECT_EQ(Pattern("[0-9]*").last("12 3"), "");
  EXPECT_EQ(Pattern("a(b)?").first("ac"), std::nullopt) << "the group takes no part";
  EXPECT_EQ(Pattern("(\\d)").last("1\xff"
                                  "2\xc3"),
            "2")
      << "bytes that are no UTF-8 match nothing";
}

TEST(FileTask, APromptCanBeAMessageForTheChatTemplate) {
  const auto style = [](const std::string& more) {
    return identity_of(task_with(more + R"("grade": {"by": "exact"})"), kFileStyle).prompt_style;
  };
  EXPECT_TRUE(asks_by_message(style(R"("message": true, )")));
  EXPECT_FALSE(asks_by_message(style(R"("message": false, )")));
  EXPECT_FALSE(asks_by_message(style("")));
  EXPECT_THAT(fault_of(R"("message": "yes", "grade": {"by": "exact"})"), Names("message"));
}

TEST(FileTask, TextsOfThePromptCanLoseTheSpaceAtTheirEnds) {
  const std::string row = R"({"question": " \n\u3000a b\u2003\u00a0", "answer": "x", "t": "\u200b c\u001f"})";
  const FileTask stripped = task_with(R"("strip": true, )" + kExact, " <{question}|{t}> ");
  EXPECT_EQ(stripped.prompt(load_text(stripped, row).questions[0]), " <a b|\u200b c> ");
  for (const char* more : {R"("strip": false, )", ""}) {
    const FileTask task = task_with(more + kExact, "<{question}>");
    EXPECT_EQ(task.prompt(load_text(task, row).questions[0]), "< \n\u3000a b\u2003\u00a0>");
  }
  EXPECT_THAT(fault_of(R"("strip": 1, )" + kExact), Names("strip"));
}

TEST(FileTask, PromptsCanLoseTheirMiddle) {
  EXPECT_FALSE(task_with(kExact).middle_cut());
  EXPECT_EQ(task_with(R"("truncate": {"at": "middle", "tokens": 900}, )" + kExact).middle_cut()->tokens, 900);
  EXPECT_EQ(task_with(R"("truncate": {"at": "middle"}, )" + kExact).middle_cut()->tokens,
            std::numeric_limits<int64_t>::max());
  EXPECT_THAT(fault_of(R"("truncate": {"at": "end", "tokens": 2, "more": 1}, )" + kExact),
              Names("truncate.at", "end", "middle", "truncate.tokens", 2, 16, "truncate.more"));
  EXPECT_THAT(fault_of(R"("truncate": {"at": "middle"}, "choose": ["a", "b"], )" + kExact),
              Names("truncate", "choose"));
}

TEST(FileTask, WhatIsRemovedFromAReplyIsNotLookedAt) {
  const FileTask task = task_with(
      R"json("extract": {"remove": "**", "pattern": "is (\\w+)"}, "gold": {"remove": "-", "pattern": "\\w+"}, )json" +
      kExact);
  const Question gold = task.gold("- a-b");
  EXPECT_EQ(gold.answer, "ab");
  EXPECT_EQ(task.grade(gold, "it **is** ab").score, 1);
  EXPECT_EQ(task.grade(gold, "it is a****b**").answer, "ab");
  EXPECT_EQ(task.grade(gold, "it is a*b").score, 0);
  EXPECT_THAT(fault_of(R"("extract": {"remove": "", "pattern": "a"}, )" + kExact), Names("extract.remove"));
}

TEST(FileTask, FieldsToAverageByMayBeMissing) {
  const FileTask task = task_with(R"("by": ["level", "topic"], )" + kExact, "{question} {topic}");
  EXPECT_THAT(task.by(), testing::ElementsAre("level", "topic"));
  const Dataset data = load_text(task,
                                 "{\"question\": \"a\", \"answer\": \"b\", \"topic\": \"t\", \"level\": 3}\n"
                                 "{\"question\": \"a\", \"answer\": \"b\", \"topic\": \"u\"}\n");
  EXPECT_EQ(data.questions[0].fields.at("level"), "3");
  EXPECT_FALSE(data.questions[1].fields.contains("level"));
  EXPECT_EQ(data.questions[1].fields.at("topic"), "u");
  EXPECT_THAT(
      message_of<CorruptFile>([&] { load_text(task, R"({"question": "a", "answer": "b", "level": 3})"); }),
      Names("line 1", "topic"))
      << "the prompt needs it";
  EXPECT_TRUE(task_with(kExact).by().empty());
  EXPECT_THAT(fault_of(R"("by": ["question"], )" + kExact), Names("by", "question"));
  EXPECT_THAT(fault_of(R"("by": "topic", )" + kExact), Names("by", "topic"));
}

TEST(FileTask, AnyChangeOfTheFileIsAnotherTask) {
  const std::string text = read_file(kExample);
  const TaskIdentity one = identity_of(*make_task({"", "", text}), kFileStyle);
  EXPECT_EQ(one.name, "tiny-gsm");
  EXPECT_EQ(one.prompt_style, kFileStyle);
  EXPECT_EQ(one.definition_sha256, sha256_hex(text));
  EXPECT_NE(one, identity_of(*make_task({"", "", text + "\n"}), kFileStyle));
  EXPECT_EQ(identity_of(*make_task("gsm8k", PromptStyle::kPlain), "plain").definition_sha256, std::nullopt);
  EXPECT_FALSE(asks_by_message(one.prompt_style));
  EXPECT_EQ(read_task_definition("gsm8k"), "");
  EXPECT_EQ(read_task_definition(kExample.string()), text);
  EXPECT_THAT(message_of<UsageError>([] { (void)read_task_definition("mmlu"); }),
              Names("--task", "mmlu", "gsm8k"));
}

TEST(FileTask, WhatIsWrongWithTheNewerWaysToGradeIsListed) {
  EXPECT_THAT(fault_of(R"("grade": {"by": "python"})"), Names("grade.program"));
  EXPECT_THAT(fault_of(R"json("grade": {"by": "python", "program": "check()", "seconds": 21})json"),
              Names("grade.program", "{reply}", "{extracted}", "grade.seconds", 21, 20));
  EXPECT_THAT(fault_of(R"("grade": {"by": "python", "program": "{reply} {"})"),
              Names("grade.program", "byte 8"));
  EXPECT_THAT(fault_of(R"("grade": {"by": "integers", "first": 0})"), Names("grade.first", 0));
  EXPECT_THAT(fault_of(R"("grade": {"by": "contains", "share": 1})"), Names("grade.share"));
  EXPECT_THAT(fault_of(kExact + R"(, "choose": ["a"], "stop": ["b"], "message": true)"),
              Names("choose", 1, 2, "stop", "message", "3 faults"));
  EXPECT_THAT(fault_of(R"("columns": ["a", ""], "grade": {"by": "exact"})"), Names("columns"));
}

TEST(FileTask, ProgramsAreMadeOfReplyAndRow) {
  class Seen final : public Grader {
   public:
    explicit Seen(std::vector<std::string>* programs) : programs_(*programs) {}
    Grade grade(const Question& question, std::string_view reply,
                const std::optional<std::string>&) override {
      programs_.push_back(std::string(reply) + "|" + question.fields.at("seconds"));
      return {.score = 1, .extracted = true, .answer = "x"};
    }

   private:
    std::vector<std::string>& programs_;
  };
  std::vector<std::string> programs;
  const FileTask task(
      R"({"allot_task": 1, "name": "mine", "version": 1, "prompt": "{question}", "stop": ["END"],
                          "extract": {"pattern": "<(.*)>"},
                          "grade": {"by": "python", "program": "{question}{{{reply}}}{extracted}{test}{answer}",
                                    "seconds": 7}})",
      std::make_unique<Seen>(&programs));
  EXPECT_TRUE(task.needs_grader());
  EXPECT_TRUE(task.runs_code());
  const Dataset data = load_text(task, R"({"question": "q", "answer": "a", "test": "t"})");
  const std::string code(2000, 'c');
  EXPECT_EQ(task.grade(data.questions[0], "r<" + code + ">END<no>").score, 1);
  EXPECT_THAT(programs, testing::ElementsAre("q{r<" + code + ">}" + code + "ta|7"));
  EXPECT_EQ(task.grade(data.questions[0], "no code").score, 0);
  EXPECT_EQ(programs.size(), 1u) << "nothing was extracted, so nothing is run";
  EXPECT_FALSE(task_with(kExact).runs_code());
}

}  // namespace
}  // namespace allot::evaluation
