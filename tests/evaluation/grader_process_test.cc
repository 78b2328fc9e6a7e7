// Graders as child processes: small shell scripts that answer, hang, end and disobey.
#include "evaluation/grader_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "base/temporary_directory.h"
#include "tests/message_of.h"
#include "tests/names.h"

namespace allot::evaluation {
namespace {

using namespace std::chrono_literals;

const char* const kProgramTask =
    R"json({"allot_task": 1, "name": "mine", "version": 1, "prompt": "{question}",
            "extract": {"pattern": "#(.*)"}, "grade": {"by": "program", "fields": ["tests"]}})json";

class GraderProcessTest : public testing::Test {
 protected:
  std::unique_ptr<Task> graded_by(const std::string& script, std::chrono::milliseconds patience = 20s) {
    GraderOptions options;
    options.command = script;
    options.patience = patience;
    options.scratch = directory_.path();
    return make_graded_task({"", "", kProgramTask}, make_grader(std::move(options)));
  }
  std::string failure_of(const Task& task, const std::string& reply = "r") {
    return message_of<GradingFailure>([&] { (void)task.grade(question_, reply); });
  }

  Question question_{
      .id = 17, .text = "How many?", .solution = "", .answer = "5", .fields = {{"tests", "t \"1\""}}};
  TemporaryDirectory directory_;
};

TEST_F(GraderProcessTest, GivesTheScoreOfEachReplyAndIsStartedOnce) {
  const auto task = graded_by(R"(n=0; while read -r l; do n=$((n+1)); echo "{\"score\": 0.$n}"; done)");
  EXPECT_DOUBLE_EQ(task->grade(question_, "#a").score, 0.1);
  const Grade second = task->grade(question_, "#b");
  EXPECT_DOUBLE_EQ(second.score, 0.2);
  EXPECT_EQ(second.answer, "b");
  EXPECT_TRUE(second.extracted);
}

TEST_F(GraderProcessTest, SeesQuestionAnswerReplyAndFields) {
  const auto file = directory_.path() / "seen";
  const auto task = graded_by("read -r l; printf %s \"$l\" > " + file.string() +
                              R"(; echo '{"score": 1, "extracted": null}')");
  const Grade grade = task->grade(question_, "a \"b\"\n#c\xff");
  EXPECT_EQ(grade.score, 1);
  EXPECT_FALSE(grade.extracted);
  EXPECT_EQ(read_file(file),
            R"({"answer":"5","extracted":"c","fields":{"tests":"t \"1\""},"id":17,"question":"How many?",)"
            R"("reply":"a \"b\"\n#c�"})");
}

TEST_F(GraderProcessTest, ALongReplyIsPassedWhole) {
  const auto task = graded_by(R"(read -r l; [ ${#l} -gt 300000 ] && echo '{"score": 1}'; cat)");
  EXPECT_EQ(task->grade(question_, std::string(300'000, 'x')).score, 1);
}

TEST_F(GraderProcessTest, OneThatHangsIsKilledWithItsChildrenAndStartedAnew) {
  const auto file = directory_.path() / "alive";
  const auto task =
      graded_by("if [ -e " + file.string() + R"( ]; then read -r l; echo '{"score": 1}'; fi; touch )" +
                    file.string() + "; setsid sh -c 'sleep 0.4; echo x >> " + file.string() + "' & sleep 100",
                200ms);
  EXPECT_THAT(failure_of(*task), Names("mine", 17, "How many?", "200 ms"));
  EXPECT_EQ(task->grade(question_, "r").score, 1);
}

TEST_F(GraderProcessTest, OneThatEndsOrAnswersNonsenseIsAFailureAndNoScore) {
  EXPECT_THAT(failure_of(*graded_by("exit 3")), Names("mine", 17, "How many?", "exit 3", "code 3"));
  EXPECT_THAT(failure_of(*graded_by("kill -9 $$")), testing::HasSubstr("9"));
  EXPECT_THAT(failure_of(*graded_by("read -r l; echo maybe")), Names("maybe", "score"));
  EXPECT_THAT(failure_of(*graded_by("read -r l; echo '{\"score\": 2}'")), Names("\"score\": 2", "0 to 1"));
  EXPECT_THAT(failure_of(*graded_by("read -r l; echo '{\"score\": \"1\"}'")),
              testing::HasSubstr("no number"));
  EXPECT_THAT(failure_of(*graded_by("read -r l; exec cat /dev/zero")), testing::HasSubstr("65536"));
  EXPECT_THAT(failure_of(*graded_by("no-such-program-here 2>/dev/null")), Names("127"));
  const auto twice = graded_by("read -r l; printf '{\"score\": 1}\\n{\"score\": 1}\\n'; sleep 100");
  EXPECT_EQ(twice->grade(question_, "r").score, 1);
  EXPECT_THAT(failure_of(*twice), testing::HasSubstr("more than one line"));
}

TEST_F(GraderProcessTest, AFailureCountsTheRepliesAndPromisesNoNext) {
  const auto file = directory_.path() / "started";
  const auto task =
      graded_by("echo x >> " + file.string() + R"(; read -r l; echo '{"score": 1}'; read -r l)");
  const std::string of_first = failure_of(*graded_by("exit 3"));
  EXPECT_THAT(of_first, Names("of the 1 reply", "0 have a score", "stderr"));
  EXPECT_THAT(of_first, testing::Not(testing::HasSubstr("next")));
  EXPECT_EQ(task->grade(question_, "r").score, 1);
  EXPECT_THAT(failure_of(*task), Names("code 0", "of the 2 replies", "1 has a score"));
  EXPECT_EQ(task->grade(question_, "r").score, 1);
  EXPECT_THAT(failure_of(*task), Names("of the 4 replies", "2 have a score"));
  EXPECT_EQ(read_file(file), "x\nx\n");
  EXPECT_THAT(failure_of(*graded_by("read -r l; echo maybe")), Names("maybe", "of the 1 reply"));
}

TEST_F(GraderProcessTest, HasLimitsAndNoNewPrivileges) {
  const auto file = directory_.path() / "limits";
  const auto task = graded_by(
      "read -r l; { ulimit -v; ulimit -t; ulimit -n; ulimit -c; grep NoNewPrivs "
      "/proc/self/status; } > " +
      file.string() + R"(; echo '{"score": 1}')");
  EXPECT_EQ(task->grade(question_, "r").score, 1);
  EXPECT_EQ(read_file(file), "4194304\n3600\n256\n0\nNoNewPrivs:\t1\n");
}

TEST_F(GraderProcessTest, OneWithNamespacesHasNoNetworkAndLeavesNoProcessBehind) {
  const auto file = directory_.path() / "seen";
  const auto late = directory_.path() / "late";
  {
    // Its own number, what the network has, whether it sees us, and a child that leaves the process group.
    const auto task =
        graded_by("read -r l; { echo $$; grep -c : /proc/net/dev; ls -d /proc/" + std::to_string(getpid()) +
                  " 2> /dev/null | wc -l; } > " + file.string() + "; setsid sh -c 'sleep 0.3; touch " +
                  late.string() + R"(' & echo '{"score": 1}'; cat)");
    EXPECT_EQ(task->grade(question_, "r").score, 1);
  }
  if (!read_file(file).starts_with("1\n")) GTEST_SKIP() << "this kernel gives no namespaces to this user";
  EXPECT_EQ(read_file(file), "1\n1\n0\n") << "only the loopback device, and no process but its own";
  std::this_thread::sleep_for(500ms);
  EXPECT_FALSE(std::filesystem::exists(late));
}

TEST_F(GraderProcessTest, HasAScratchDirectoryThatGoesWithItAndNothingOfOurEnvironment) {
  ::setenv("HF_TOKEN", "hf_secret", 1);
  std::string seen, scratch;
  {
    // As users have it: without a scratch directory of ours.
    const auto task = make_graded_task(
        {"", "", kProgramTask},
        make_grader(
            R"sh(read -r l; echo x > "$TMPDIR/kept"; )sh"
            R"sh(printf '{"score": 1, "extracted": "%s %s"}\n' "$TMPDIR" "$(env | cut -d= -f1 | tr '\n' ' ')"; cat)sh"));
    seen = task->grade(question_, "r").answer.value();
    scratch = seen.substr(0, seen.find(' '));
    EXPECT_EQ(read_file(scratch + "/kept"), "x\n");
  }
  ::unsetenv("HF_TOKEN");
  EXPECT_THAT(seen, testing::HasSubstr(" PATH "));
  EXPECT_THAT(seen, testing::Not(testing::HasSubstr("HF_TOKEN")));
  EXPECT_FALSE(std::filesystem::exists(scratch));
}

TEST_F(GraderProcessTest, ATaskThatNeedsOneSaysSo) {
  const auto task = make_task({"", "", kProgramTask});
  EXPECT_TRUE(task->needs_grader());
  EXPECT_THAT(message_of<UsageError>([&] { require_grader(*task, ""); }), Names("mine", "--grader"));
  EXPECT_NO_THROW(require_grader(*task, "cat"));
  EXPECT_NO_THROW(require_grader(*make_task("gsm8k", PromptStyle::kPlain), ""));
  EXPECT_THAT(failure_of(*task), testing::HasSubstr("--grader"));
}

}  // namespace
}  // namespace allot::evaluation
