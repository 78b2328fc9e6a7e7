#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/file.h"
#include "tests/app/run_command.h"
#include "tests/names.h"

namespace allot::app {
namespace {

std::string line(const std::string& prediction, const std::string& answer) {
  return R"({"prediction": ")" + prediction + R"(", "answer": ")" + answer + "\"}\n";
}

TEST(GradeCommand, GivesOneLineForEachPrediction) {
  const CommandResult result = run_command(
      {"allot", "grade", "--task", "gsm8k"},
      line("1,234.50", "1234.5") + line("So it is \\\\boxed{18}.", "18") + line("5 6", "6") +
          line("50\\\\%", "50") + line("50\\\\%", "50\\\\%") + line("work\\n#### 7", "other work\\n#### 7") +
          "\n{\"prediction\": 18, \"answer\": 18}\n" + line("", "18"));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(
      result.out,
      "{\"correct\":1}\n{\"correct\":1}\n{\"correct\":0}\n{\"correct\":0}\n{\"correct\":1}\n{\"correct\":1}\n"
      "{\"correct\":1}\n{\"correct\":0}\n");
}

TEST(GradeCommand, PromptStyleSaysWhereARepliesAnswerIs) {
  const std::string reply = line("There are 5 boxes.\\n#### 18\\nNext question: 7 boxes", "18");
  EXPECT_EQ(run_command({"allot", "grade", "--prompt-style", "plain"}, reply).out, "{\"correct\":1}\n");
  EXPECT_EQ(run_command({"allot", "grade", "--prompt-style", "llama-chat"}, reply).out, "{\"correct\":0}\n");
}

TEST(GradeCommand, ABrokenLineIsNamedAfterTheVerdictsBeforeIt) {
  const CommandResult result =
      run_command({"allot", "grade"}, line("18", "18") + "{\"prediction\": \"5\"}\n");
  EXPECT_EQ(result.code, 1);
  EXPECT_EQ(result.out, "{\"correct\":1}\n");
  EXPECT_THAT(result.err, Names("line 2", "stdin", "answer"));
  EXPECT_THAT(run_command({"allot", "grade"}, "5\n").err, Names("line 1", "stdin", "JSON"));
  EXPECT_THAT(run_command({"allot", "grade"}, line("5", "many")).err, Names("answer", "many"));
  EXPECT_THAT(run_command({"allot", "grade"}, "{\"prediction\": [], \"answer\": \"5\"}\n").err,
              Names("prediction", "array"));
}

TEST(GradeCommand, AProgramGradesForATaskFile) {
  const auto task = fresh_directory() / "mine.json";
  write_file_atomically(task, R"({"allot_task": 1, "name": "mine", "version": 1, "prompt": "{question}",
                                  "grade": {"by": "program"}})");
  const std::vector<std::string> words = {"allot", "grade", "--task", task.string()};
  const auto graded_by = [&](const std::string& program) {
    std::vector<std::string> all = words;
    all.insert(all.end(), {"--grader", program});
    return run_command(all, line("5", "6") + line("7", "8"));
  };
  const CommandResult half = graded_by(R"(while read -r l; do echo '{"score": 0.5}'; done)");
  EXPECT_EQ(half.code, 0) << half.err;
  EXPECT_EQ(half.out, "{\"correct\":0,\"score\":0.5}\n{\"correct\":0,\"score\":0.5}\n");
  const CommandResult ended = graded_by(R"(read -r l; echo '{"score": 1}'; exit 4)");
  EXPECT_EQ(ended.code, 1);
  EXPECT_EQ(ended.out, "{\"correct\":1,\"score\":1.0}\n");
  EXPECT_THAT(ended.err, Names("line 2", "mine", "code 4"));
  const CommandResult without = run_command(words, line("5", "6"));
  EXPECT_EQ(without.code, 2);
  EXPECT_THAT(without.err, Names("mine", "--grader"));
}

TEST(GradeCommand, SeveralAnswersAreAListAndHaveAScore) {
  const std::string rows = R"({"prediction": "ab or CD", "answer": ["Ab", "cd", "ef"]})"
                           "\n"
                           R"({"prediction": "ef, ab, cd", "answer": ["Ab", "cd", "ef"]})"
                           "\n" +
                           line("AB", "ab");
  const CommandResult result = run_command({"allot", "grade", "--task", "ruler-fwe"}, rows);
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out,
            "{\"correct\":0,\"score\":0.6666666666666666}\n{\"correct\":1,\"score\":1.0}\n"
            "{\"correct\":1,\"score\":1.0}\n");
  EXPECT_THAT(run_command({"allot", "grade", "--task", "gsm8k"}, rows).err,
              Names("line 1", "answer", "array"));
  for (const char* list : {"[]", R"(["ab", ""])", R"(["ab", " "])", R"(["ab", null])"}) {
    const CommandResult refused =
        run_command({"allot", "grade", "--task", "ruler-fwe"},
                    std::string(R"({"prediction": "ab", "answer": )") + list + "}\n");
    EXPECT_EQ(refused.code, 1) << list;
    EXPECT_THAT(refused.err, Names("line 1", "answer", "list")) << list;
  }
}

TEST(GradeCommand, AnUnknownTaskIsWrongUsage) {
  const CommandResult result = run_command({"allot", "grade", "--task", "mmlu"});
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.err, Names("--task", "gsm8k"));
}

}  // namespace
}  // namespace allot::app
