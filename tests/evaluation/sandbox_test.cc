// The sandbox from within: small programs that try what it is to keep from them, with the namespaces and
// without, as in a container that refuses these.
#include "evaluation/sandbox.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>

#include "base/file.h"
#include "base/temporary_directory.h"
#include "tests/names.h"

namespace allot::evaluation {
namespace {

using testing::HasSubstr;
using testing::Not;

struct Ran {
  std::string out;
  SandboxGaps gaps;
};

// The parameter: whether namespaces are asked for.
class SandboxTest : public testing::TestWithParam<bool> {
 protected:
  // What a shell script writes within the sandbox.
  Ran run(const std::string& script) const {
    const Sandbox sandbox(scratch_.path());
    int out[2], report[2];
    EXPECT_EQ(::pipe(out), 0);
    EXPECT_EQ(::pipe(report), 0);
    const pid_t child = ::fork();
    if (child == 0) {
      SandboxGaps gaps{.namespaces = EPERM};
      if (GetParam()) {
        gaps.namespaces = 0;
        sandbox.separate(&gaps);
      }
      const pid_t inner = ::fork();
      if (inner == 0) {
        sandbox.close_off(&gaps);
        [[maybe_unused]] const ssize_t told = ::write(report[1], &gaps, sizeof gaps);
        ::dup2(out[1], STDOUT_FILENO);
        ::execle("/bin/sh", "sh", "-c", script.c_str(), static_cast<char*>(nullptr), sandbox.environment());
      }
      ::waitpid(inner, nullptr, 0);
      ::_exit(0);
    }
    ::close(out[1]);
    ::close(report[1]);
    Ran ran;
    EXPECT_EQ(::read(report[0], &ran.gaps, sizeof ran.gaps), static_cast<ssize_t>(sizeof ran.gaps));
    char buffer[4096];
    for (ssize_t count = 0; (count = ::read(out[0], buffer, sizeof buffer)) > 0;)
      ran.out.append(buffer, static_cast<size_t>(count));
    ::close(out[0]);
    ::close(report[0]);
    ::waitpid(child, nullptr, 0);
    return ran;
  }

  TemporaryDirectory scratch_, outside_;
};

TEST_P(SandboxTest, WritesInItsScratchDirectoryAlone) {
  if (landlock_abi() == 0) GTEST_SKIP() << "this kernel has no Landlock";
  const std::string outside = outside_.path().string();
  write_file_atomically(outside_.path() / "kept", "kept");
  std::filesystem::create_directory(outside_.path() / "folder");
  const std::string tries = "try() { sh -c \"$1\" 2> /dev/null && echo \"$1\"; }; try 'echo x > " + outside +
                            "/new'; try 'echo x >> " + outside + "/kept'; try 'rm " + outside +
                            "/kept'; try 'mkdir " + outside + "/more'; try 'rmdir " + outside +
                            "/folder'; try 'ln -s x " + outside + "/link'; try 'mv \"$TMPDIR\"/moved " +
                            outside + "/moved'; try 'umount /proc'; ";
  const Ran ran = run("echo x > \"$TMPDIR\"/moved; " + tries + "cat " + outside +
                      "/kept; cd; mkdir deep; echo y > deep/file; cat deep/file; rm -r deep; ls; echo z > "
                      "/dev/null && echo end");
  EXPECT_EQ(ran.out,
            "kept"
            "y\nmoved\nend\n")
      << "nothing but reading outside, everything inside";
  EXPECT_EQ(read_file(outside_.path() / "kept"), "kept");
  EXPECT_EQ(ran.gaps.landlock, 0);
  if (landlock_abi() < 3) return;  // older ones let files be emptied, which describe() says
  EXPECT_EQ(run("truncate -s 0 " + outside + "/kept 2> /dev/null || echo refused").out, "refused\n");
}

TEST_P(SandboxTest, ReachesNeitherTheNetworkNorUnixSockets) {
  const int tcp = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{
      .sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
  socklen_t size = sizeof address;
  ASSERT_EQ(::bind(tcp, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(::listen(tcp, 8), 0);
  ASSERT_EQ(::getsockname(tcp, reinterpret_cast<sockaddr*>(&address), &size), 0);
  const int local = ::socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un path{.sun_family = AF_UNIX, .sun_path = {}};
  const std::string name = (outside_.path() / "s").string();
  name.copy(path.sun_path, sizeof path.sun_path - 1);
  ASSERT_EQ(::bind(local, reinterpret_cast<sockaddr*>(&path), sizeof path), 0);
  ASSERT_EQ(::listen(local, 8), 0);

  const std::string script = outside_.path() / "connect.py";
  write_file_atomically(
      script,
      "import socket, sys\n"
      "def connected(family, kind, address):\n"
      "    try:\n"
      "        socket.socket(family, kind).connect(address)\n"
      "        return 'yes'\n"
      "    except OSError as error:\n"
      "        return error.errno\n"
      "here = ('127.0.0.1', int(sys.argv[1]))\n"
      "print(connected(socket.AF_INET, socket.SOCK_STREAM, here),\n"
      "      connected(socket.AF_INET, socket.SOCK_DGRAM, here),\n"
      "      connected(socket.AF_UNIX, socket.SOCK_STREAM, sys.argv[2]), len(socket.socketpair()))\n");
  const std::string command =
      "python3 " + script + " " + std::to_string(ntohs(address.sin_port)) + " " + name;
  FILE* free = ::popen(command.c_str(), "r");
  char line[100] = {};
  ASSERT_NE(std::fgets(line, sizeof line, free), nullptr);
  ::pclose(free);
  EXPECT_STREQ(line, "yes yes yes 2\n") << "without the sandbox";
  const Ran ran = run(command);
  ::close(tcp);
  ::close(local);
  if (ran.gaps.seccomp != 0) GTEST_SKIP() << "this kernel filters no system calls";
  EXPECT_EQ(ran.out, fmt::format("{0} {0} {0} 2\n", EACCES)) << "pairs of sockets stay";
}

TEST_P(SandboxTest, SeesNoVariableThatIsNotNeeded) {
  ::setenv("HF_TOKEN", "hf_secret", 1);
  ::setenv("LC_TIME", "C", 1);
  const Ran ran = run("env; tr '\\0' '\\n' < /proc/self/environ; cat /proc/" + std::to_string(::getpid()) +
                      "/environ 2> /dev/null");
  ::unsetenv("HF_TOKEN");
  ::unsetenv("LC_TIME");
  EXPECT_THAT(ran.out, HasSubstr("PATH="));
  EXPECT_THAT(ran.out, HasSubstr("LC_TIME=C"));
  EXPECT_THAT(ran.out, HasSubstr("HOME=" + scratch_.path().string()));
  EXPECT_THAT(ran.out, HasSubstr("TMPDIR=" + scratch_.path().string()));
  if (ran.gaps.landlock != 0 && ran.gaps.namespaces != 0)
    GTEST_SKIP()
        << "this kernel has neither Landlock nor namespaces, so other processes' environments are seen";
  EXPECT_THAT(ran.out, Not(HasSubstr("hf_secret")));
}

TEST_P(SandboxTest, SignalsNobodyOutside) {
  if (!GetParam() && landlock_abi() < 6) GTEST_SKIP() << "this kernel's Landlock keeps no signals back";
  const Ran ran = run("kill -0 " + std::to_string(::getpid()) + " 2> /dev/null || echo refused");
  if (GetParam() && ran.gaps.namespaces != 0) GTEST_SKIP() << "this kernel gives no namespaces to this user";
  EXPECT_EQ(ran.out, "refused\n");
}

TEST_P(SandboxTest, HasNoCapabilitiesAndCanGainNone) {
  EXPECT_EQ(run("grep -E 'Cap(Prm|Eff)|NoNewPrivs' /proc/self/status").out,
            "CapPrm:\t0000000000000000\nCapEff:\t0000000000000000\nNoNewPrivs:\t1\n");
}

INSTANTIATE_TEST_SUITE_P(, SandboxTest, testing::Bool(), [](const auto& instance) {
  return instance.param ? "WithNamespaces" : "WithoutNamespaces";
});

TEST(SandboxGaps, EachIsSaidWithItsReason) {
  EXPECT_THAT(describe(SandboxGaps{.landlock_abi = 7}), testing::IsEmpty());
  EXPECT_THAT(describe({.namespaces = EPERM, .landlock_abi = 7}),
              testing::ElementsAre(Names("namespaces", "Operation not permitted")));
  EXPECT_THAT(
      describe({.proc = EPERM, .landlock = ENOSYS, .seccomp = EINVAL}),
      testing::ElementsAre(Names("/proc"), Names("Landlock", "not implemented"), Names("Unix sockets")));
  EXPECT_THAT(describe(SandboxGaps{.landlock_abi = 2}),
              testing::ElementsAre(Names("Landlock", 2, "empty files")));
  EXPECT_THAT(describe({.namespaces = EPERM, .landlock_abi = 7, .seccomp = EINVAL}),
              testing::Contains(HasSubstr("network")));
}

}  // namespace
}  // namespace allot::evaluation
