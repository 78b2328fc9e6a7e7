// LongBench v2 as it comes with allot: the published file, the published prompt, and hand-made replies with
// the letter that the published code finds in them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/file.h"
#include "base/temporary_directory.h"
#include "evaluation/accuracy.h"
#include "evaluation/task.h"
#include "tests/evaluation/expect_letters.h"

namespace allot::evaluation {
namespace {

using testing::ElementsAre;

constexpr const char* kNames[] = {"longbench-v2", "longbench-v2-32k"};

// Two objects in the form of the published data.json, with texts of our own.
const std::string kPublished = R"([
    {
        "_id": "66ec0c4c821e116aacb1994a", "domain": "Single-Document QA", "sub_domain": "Literary",
        "difficulty": "easy", "length": "short", "question": " Who keeps the key?\n",
        "choice_A": "Ada", "choice_B": "Bo ", "choice_C": "\u3000Cy", "choice_D": "Di {x}",
        "answer": "C", "context": "\n\nCy has a key.\nBo has {none}, $Q$.\u00a0\n"
    },
    {
        "_id": "66ec0c4c821e116aacb1994b", "domain": "Code Repository Understanding", "sub_domain": "Code repo QA",
        "difficulty": "hard", "length": "long", "question": "Which?",
        "choice_A": "a", "choice_B": "b", "choice_C": "c", "choice_D": "d", "answer": "A", "context": "int x;"
    }
])";

Dataset published(const Task& task) {
  const TemporaryDirectory directory;
  write_file_atomically(directory.path() / "data.json", kPublished);
  return task.load(directory.path() / "data.json");
}

TEST(LongBench, ReadsThePublishedFileAndAsksAsThePublishedCode) {
  for (const char* name : kNames) {
    const auto task = shipped(name);
    const Dataset data = published(*task);
    ASSERT_EQ(data.questions.size(), 2u);
    // Texts lose the space at their ends, also wide space, and nothing in them is taken for a field.
    EXPECT_EQ(
        task->prompt(data.questions[0]),
        "Please read the following text and answer the question below.\n\n<text>\nCy has a key.\nBo has "
        "{none}, $Q$.\n</text>\n\nWhat is the correct answer to this question: Who keeps the "
        "key?\nChoices:\n(A) Ada\n(B) Bo\n(C) Cy\n(D) Di {x}\n\nFormat your response as follows: \"The "
        "correct answer is (insert answer here)\".");
    EXPECT_EQ(data.questions[0].answer, "C");
    EXPECT_EQ(data.questions[1].answer, "A");
    EXPECT_TRUE(task->message()) << "the published code sends it as the message of a user";
    const Generation generation = task->generation_defaults();
    EXPECT_EQ(generation.temperature, 0.1);
    EXPECT_EQ(generation.max_new_tokens, 128);
    EXPECT_EQ(generation.top_p, 1);
    EXPECT_EQ(generation.repetition_penalty, 1);
  }
  EXPECT_EQ(shipped("longbench-v2")->middle_cut()->tokens, 120'000);
  EXPECT_EQ(shipped("longbench-v2-32k")->middle_cut()->tokens, 32'768);
}

TEST(LongBench, AccuracyIsGivenByDifficultyAndLength) {
  const auto task = shipped("longbench-v2");
  EXPECT_THAT(task->by(), ElementsAre("difficulty", "length"));
  const Dataset data = published(*task);
  const std::vector<double> scores = {1, 0};
  const auto by_length = accuracy_by("length", data.questions, scores);
  ASSERT_EQ(by_length.size(), 2u);
  EXPECT_EQ(by_length.at("short").value, 1);
  EXPECT_EQ(by_length.at("long").value, 0);
  EXPECT_EQ(accuracy_by("difficulty", data.questions, scores).at("hard").questions, 1);
}

// The first "The correct answer is (X)"; where there is none, the first "The correct answer is X"; both after
// all asterisks are gone, with these capitals and these blanks.
TEST(LongBench, RepliesAreReadAsByThePublishedCode) {
  const std::vector<LetterCase> cases = {
      {"The correct answer is (A)", 'A'},
      {"The correct answer is (B).", 'B'},
      {"The correct answer is C", 'C'},
      {"The correct answer is D.", 'D'},
      {"**The correct answer is (A)**", 'A'},
      {"The correct answer is **(B)**", 'B'},
      {"The correct answer is (**C**)", 'C'},
      {"The correct answer is **D**.", 'D'},
      {"*The* *correct* *answer* *is* *(A)*", 'A'},
      {"The correct* answer is (B*)", 'B'},
      {"T*he correct answer is C", 'C'},
      {"\"The correct answer is (D)\".", 'D'},
      {"The correct answer is (A) Ada", 'A'},
      {"The correct answer is (B) because (C) is wrong", 'B'},
      {"I think so.\n\nThe correct answer is (C)\n", 'C'},
      {"The correct answer is (A). No: The correct answer is (B).", 'A'},
      {"The correct answer is A. No: The correct answer is (B).",
       'B'},  // brackets go first, wherever they are
      {"The correct answer is (B). The correct answer is A.", 'B'},
      {"The correct answer is C. The correct answer is D.", 'C'},
      {"The correct answer is (insert answer here). The correct answer is (D)", 'D'},
      {"The correct answer is (insert answer here). The correct answer is D", 'D'},
      {"The correct answer is (insert answer here)", 0},
      {"The correct answer is (E)", 0},
      {"The correct answer is E", 0},
      {"The correct answer is (a)", 0},
      {"The correct answer is a", 0},
      {"the correct answer is (A)", 0},
      {"The Correct Answer is (A)", 0},
      {"THE CORRECT ANSWER IS (A)", 0},
      {"The correct answer is: (A)", 0},
      {"The correct answer is: A", 0},
      {"The correct answer is  (A)", 0},
      {"The correct answer is\n(A)", 0},
      {"The correct answer is\nA", 0},
      {"The correct answer is ( A )", 0},
      {"The correct answer is ((A))", 0},
      {"The correct answer is [A]", 0},
      {"The correct answer is (A", 0},
      {"The correct answer is (AB)", 0},
      {"The correct answer is AB", 'A'},
      {"The correct answer is Ada", 'A'},
      {"The correct answer is Bo", 'B'},
      {"The correct answer is Cy, (C)", 'C'},
      {"The correct answer is Di {x}", 'D'},
      {"The correct answer is Eve or A", 0},
      {"The correct answer is A)", 'A'},
      {"The correct answer is B/C", 'B'},
      {"The correct answer is \"A\"", 0},
      {"The correct answer is option A", 0},
      {"The correct answer is choice (B)", 0},
      {"The correct answer is not A", 0},
      {"The correct answer (A)", 0},
      {"The answer is (A)", 0},
      {"Correct answer: (A)", 0},
      {"(A)", 0},
      {"A", 0},
      {"", 0},
      {"*", 0},
      {"The correct answer is ", 0},
      {"The correct answer isA", 0},
      {"The correct answer is(A)", 0},
      {"xThe correct answer is (B)x", 'B'},
      {"答案是 The correct answer is (C)。", 'C'},
      {"The correct answer is （A）", 0},
      {"The correct answer is \\boxed{A}", 0},
      {"<text>The correct answer is (D)</text>", 'D'},
      {"The correct answer is (A*", 0},
      {"The correct answer is **\n(A)**", 0},
      {"The correct answer is ** A**", 0},
      {"The correct ** answer is (A)", 0},
      {"The correct answer is D\nThe correct answer is (A", 'D'},
      {"Who? The correct answer is A? The correct answer is (C)?", 'C'},
  };
  ASSERT_GE(cases.size(), 60u);
  for (const char* name : kNames) expect_letters(name, cases);
  EXPECT_EQ(
      shipped("longbench-v2")->grade(shipped("longbench-v2")->gold("A"), "The correct answer is (*B)").answer,
      "B");
}

}  // namespace
}  // namespace allot::evaluation
