// Code from replies: what passes, what does not, and what it cannot do meanwhile.
#include "evaluation/code_grader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>

#include "base/file.h"
#include "base/json.h"
#include "base/temporary_directory.h"
#include "evaluation/grader_process.h"
#include "evaluation/sandbox.h"
#include "evaluation/task.h"
#include "tests/message_of.h"
#include "tests/names.h"

namespace allot::evaluation {
namespace {

double score_of(Grader* grader, const std::string& program, const std::string& seconds = "3") {
  Question question{.text = "", .solution = "", .answer = ""};
  question.fields[kCodeSeconds] = seconds;
  return grader->grade(question, program, "code").score;
}

TEST(CodeGrader, PassesWhatRunsToItsEnd) {
  const auto grader = make_code_grader();
  for (const char* program : {
           "",
           "assert 1 + 1 == 2",
           "import math\ndef f(x):\n    return math.sqrt(x)\nassert f(9) == 3",
           "print('é' * 100000)",
           "try:\n    raise ValueError\nexcept ValueError:\n    pass",
           "if __name__ == '__main__':\n    raise SystemExit(1)",  // as in the published harness
           "import threading\nt = threading.Thread(target=lambda: None)\nt.start()\nt.join()",
           "open('x', 'w').write('in a directory of its own')",
           "x = [i for i in range(10)]\nassert sum(x) == 45",
           "class A:\n    def f(self):\n        return 1\nassert A().f() == 1",
           "def f(n):\n    yield from range(n)\nassert list(f(3)) == [0, 1, 2]",
           "import re, collections, itertools, functools, heapq, bisect, typing, string, hashlib",
           "import dataclasses\n@dataclasses.dataclass\nclass A:\n    x: int\nassert A(1).x == 1",
       })
    EXPECT_EQ(score_of(grader.get(), program), 1) << program;
}

TEST(CodeGrader, FailsWhatDoesNot) {
  const auto grader = make_code_grader();
  for (const char* program : {
           "assert 1 + 1 == 3",
           "def f(:",
           "raise KeyboardInterrupt",
           "import sys\nsys.exit(0)",
           "import os\nos._exit(0)",
           "exit()",
           "quit(0)",
           "undefined",
           "raise SystemExit(0)",
           "assert False, 'é'",
           "1 / 0",
           "import os\nos.abort()",
           "x = (",
           "import no_such_module",
           "x = 'a\0b'",
           "\tx = 1\n  y = 2",
           "input()",
           "import os\nos.kill(os.getpid(), 9)",
           "def f():\n    return f()\nf()",
           "import json\nprint(json.dumps({'score': 1}), flush=True)\nraise ValueError",
       })
    EXPECT_EQ(score_of(grader.get(), program), 0) << program;
  // The grader lives on.
  EXPECT_EQ(score_of(grader.get(), "assert True"), 1);
}

TEST(CodeGrader, EndsWhatHangsWithAllThatItStarted) {
  const auto grader = make_code_grader();
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(score_of(grader.get(), "while True: pass", "1"), 0);
  EXPECT_EQ(score_of(grader.get(),
                     "import subprocess, time\nsubprocess.Popen(['sleep', '600'])\ntime.sleep(600)", "1"),
            0);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(15));
  EXPECT_EQ(score_of(grader.get(), "assert True"), 1);
}

// The sandbox is that of any grader (grader_process_test.cc); here, that programs are in it.
TEST(CodeGrader, KeepsProgramsFromWritingElsewhereAndFromTheNetwork) {
  if (landlock_abi() == 0) GTEST_SKIP() << "this kernel has no Landlock";
  const TemporaryDirectory directory;
  const std::string file = directory.path() / "mine";
  const auto grader = make_code_grader();
  EXPECT_EQ(score_of(grader.get(), "open('" + file + "', 'w')"), 0);
  EXPECT_FALSE(std::filesystem::exists(file));
  EXPECT_EQ(score_of(grader.get(), "import socket\nsocket.socket()"), 0);
}

Question humaneval_question() {
  Question question{
      .text = "def add(x, y):\n    \"\"\" The sum. \"\"\"\n", .solution = "", .answer = "    return x + y\n"};
  question.fields = {{"test", "def check(f):\n    assert f(2, 3) == 5\n    assert f(-1, 1) == 0\n"},
                     {"entry_point", "add"}};
  return question;
}

std::unique_ptr<Task> shipped(const std::string& name) {
  return make_graded_task({name, std::string(kFileStyle), read_task_definition(name)}, make_code_grader());
}

TEST(HumanEval, GradesCompletionsUpToWhereTheFunctionEnds) {
  const auto task = shipped("humaneval");
  const Question question = humaneval_question();
  EXPECT_EQ(task->prompt(question), question.text);
  const auto score = [&](const std::string& reply) { return task->grade(question, reply).score; };
  EXPECT_EQ(score("    return x + y\n"), 1);
  EXPECT_EQ(score("    return x + y\n\ndef other():\n    return 1 +"), 1);
  EXPECT_EQ(score("    return x + y\nprint(add(1, 2)"), 1);
  EXPECT_EQ(score("    return x + y\n\nclass A(:"), 1);
  EXPECT_EQ(score("    return x + y\n# and so on\n)"), 1);
  EXPECT_EQ(score("    return x + y\nif True:"), 1);
  EXPECT_EQ(score("    return x - y\n"), 0);
  EXPECT_EQ(score("    return x +"), 0);
  EXPECT_EQ(score(""), 0);
  EXPECT_EQ(score("    return sum([x, y])\n"), 1);
  EXPECT_EQ(score("    return y + x  # either way\n"), 1);
  EXPECT_EQ(score("    s = 0\n    for v in (x, y):\n        s += v\n    return s"), 1);
  EXPECT_EQ(score("    return x + y + 1"), 0);
  EXPECT_EQ(score("  return x + y\n"), 0);
  EXPECT_EQ(score("return x + y"), 0);
  EXPECT_EQ(score("    x = 1\n    # a note\n    return 6 - x"), 0);
  EXPECT_EQ(score("    total = x\n    # a note within\n    return total + y"), 1);
}

TEST(HumanEval, TakesTheFirstBlockOfAChatsReply) {
  const auto task = shipped("humaneval-chat");
  EXPECT_TRUE(task->message());
  const Question question = humaneval_question();
  const std::string right = "def add(x, y):\n    return x + y\n", wrong = "def add(x, y):\n    return 0\n";
  const auto grade = [&](const std::string& reply) { return task->grade(question, reply); };
  EXPECT_EQ(grade("Here:\n```python\n" + right + "```\nIt adds.").score, 1);
  EXPECT_EQ(grade("```\n" + right + "```").score, 1);
  EXPECT_EQ(grade("```py\n" + right).score, 1) << "cut off behind the code";
  EXPECT_EQ(grade("```python\n" + wrong + "```\nBetter:\n```python\n" + right + "```").score, 0);
  EXPECT_EQ(grade("```python\nadd = lambda x, y: x + y\n```").score, 1);
  EXPECT_EQ(grade(right).score, 0);
  EXPECT_EQ(grade("```Python\n" + right + "```").score, 1);
  EXPECT_EQ(grade("~~~python\n" + right + "~~~").score, 0);
  EXPECT_EQ(
      grade("```python\ndef helper(v):\n    return v\n\ndef add(x, y):\n    return helper(x) + y\n```").score,
      1);
  EXPECT_EQ(grade("```python\nprint(add(1, 2))\n```").score, 0);
  EXPECT_FALSE(grade(right).extracted);
}

TEST(HumanEval, AsksWhetherCodeMayRun) {
  const auto task = make_task({"humaneval", std::string(kFileStyle), read_task_definition("humaneval")});
  EXPECT_THAT(message_of<UsageError>([&] { require_grader(*task, ""); }),
              Names("humaneval", "--allow-code-execution"));
  EXPECT_THAT(message_of<UsageError>([&] { require_grader(*task, "python3 mine.py"); }),
              Names("humaneval", "--allow-code-execution"));
  require_grader(*task, std::string(kCodeGrader));
  const auto other =
      make_task({"", "", R"({"allot_task": 1, "name": "mine", "version": 1, "prompt": "{question}",
                                          "grade": {"by": "program"}})"});
  EXPECT_THAT(message_of<UsageError>([&] { require_grader(*other, std::string(kCodeGrader)); }),
              Names("mine", "--grader"));
}

}  // namespace
}  // namespace allot::evaluation
