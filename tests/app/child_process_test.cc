#include "app/cli/child_process.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "tests/names.h"

namespace allot::app {
namespace {

using std::chrono::seconds;

constexpr auto kPatience = seconds(30);

std::filesystem::path log_path() {
  const auto path = std::filesystem::path(::testing::TempDir()) /
                    (std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()) + ".log");
  std::filesystem::remove(path);
  return path;
}

TEST(ChildProcess, WritesBothOutputsToItsLogAndReportsItsExitCode) {
  const auto log = log_path();
  ChildProcess child({"/bin/sh", "-c", "echo out; echo err >&2; exit 3"}, log);
  const auto status = child.wait(kPatience);
  ASSERT_TRUE(status);
  EXPECT_EQ(status->code, 3);
  EXPECT_EQ(status->signal, 0);
  EXPECT_FALSE(status->success());
  EXPECT_EQ(status->to_string(), "exited with code 3");
  EXPECT_EQ(read_file(log), "out\nerr\n");
}

TEST(ChildProcess, KilledChildReportsItsSignal) {
  ChildProcess child({"/bin/sleep", "1000"}, log_path());
  EXPECT_EQ(child.poll(), std::nullopt);
  child.send_signal(SIGKILL);
  const auto status = child.wait(kPatience);
  ASSERT_TRUE(status);
  EXPECT_EQ(status->signal, SIGKILL);
  EXPECT_THAT(status->to_string(), Names("signal", 9));
}

TEST(ChildProcess, StopKillsAChildThatIgnoresTheRequest) {
  const auto log = log_path();
  ChildProcess child({"/bin/sh", "-c", "trap '' TERM; echo ready; exec sleep 1000"}, log);
  while (read_file(log).empty()) ASSERT_FALSE(child.wait(std::chrono::milliseconds(5)));
  EXPECT_EQ(child.stop(std::chrono::milliseconds(1)).signal, SIGKILL);
}

TEST(ChildProcess, MissingProgramIsAnErrorThatNamesIt) {
  try {
    ChildProcess child({"/nowhere/allot"}, log_path());
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), Names("/nowhere/allot", "No such file or directory"));
  }
}

TEST(ChildProcess, LogsOfSeveralStartsFollowEachOther) {
  const auto log = log_path();
  for (const char* word : {"echo one", "echo two"}) {
    ChildProcess child({"/bin/sh", "-c", word}, log);
    ASSERT_TRUE(child.wait(kPatience));
  }
  EXPECT_EQ(read_file(log), "one\ntwo\n");
}

TEST(ChildProcess, DestructionEndsTheChild) {
  pid_t pid = 0;
  {
    ChildProcess child({"/bin/sleep", "1000"}, log_path());
    pid = child.pid();
  }
  EXPECT_EQ(::kill(pid, 0), -1);
  EXPECT_EQ(errno, ESRCH);
}

TEST(ChildProcess, DiesWithAParentThatIsKilled) {
  // The grandchild becomes ours when its parent dies, so that its end can be waited for.
  ASSERT_EQ(::prctl(PR_SET_CHILD_SUBREAPER, 1), 0);
  int pids[2];
  ASSERT_EQ(::pipe(pids), 0);
  const auto log = log_path();
  const pid_t parent = ::fork();
  if (parent == 0) {
    ChildProcess child({"/bin/sleep", "1000"}, log);
    const pid_t pid = child.pid();
    [[maybe_unused]] const ssize_t told = ::write(pids[1], &pid, sizeof pid);
    ::raise(SIGKILL);
  }
  pid_t grandchild = 0;
  ASSERT_EQ(::read(pids[0], &grandchild, sizeof grandchild), static_cast<ssize_t>(sizeof grandchild));
  ASSERT_EQ(::waitpid(parent, nullptr, 0), parent);
  int raw = 0;
  ASSERT_EQ(::waitpid(grandchild, &raw, 0), grandchild);
  EXPECT_TRUE(WIFSIGNALED(raw));
  EXPECT_EQ(WTERMSIG(raw), SIGTERM);
  ::close(pids[0]);
  ::close(pids[1]);
}

}  // namespace
}  // namespace allot::app
