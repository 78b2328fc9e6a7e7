#include "app/cli/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fmt/format.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "app/cli/stop_signal.h"
#include "base/error.h"

namespace allot::app {
namespace {

constexpr int kCannotStart = 127;

// Runs in the child between fork and exec: async-signal-safe calls only.
[[noreturn]] void become(char* const* argv, int log, int failure_pipe, pid_t parent) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(kCannotStart);  // the parent ended before the line above took effect
  const int nothing = ::open("/dev/null", O_RDONLY);
  ::dup2(nothing, STDIN_FILENO);
  ::dup2(log, STDOUT_FILENO);
  ::dup2(log, STDERR_FILENO);
  ::signal(SIGINT, SIG_DFL);
  ::signal(SIGTERM, SIG_DFL);
  ::signal(SIGPIPE, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::execv(argv[0], argv);
  const int reason = errno;
  [[maybe_unused]] const ssize_t told = ::write(failure_pipe, &reason, sizeof reason);
  ::_exit(kCannotStart);
}

}  // namespace

std::string ExitStatus::to_string() const {
  if (signal == 0) return "exited with code " + std::to_string(code);
  return "was ended by signal " + std::to_string(signal) + " (" + ::strsignal(signal) + ")";
}

ChildProcess::ChildProcess(const std::vector<std::string>& command, const std::filesystem::path& log_file) {
  const auto fail = [&](const std::string& step, int reason) {
    throw Error("cannot start " + command.front() + ": " + step + ": " + std::strerror(reason));
  };
  std::vector<std::string> words = command;
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);

  if (log_file.has_parent_path()) {
    std::error_code error;
    std::filesystem::create_directories(log_file.parent_path(), error);
    if (error) fail("create " + log_file.parent_path().string(), error.value());
  }
  const int log = ::open(log_file.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (log < 0) fail("open " + log_file.string(), errno);
  // The child reports a failed exec through this pipe; a successful exec closes it.
  int failure[2];
  if (::pipe2(failure, O_CLOEXEC) != 0) {
    const int reason = errno;
    ::close(log);
    fail("pipe", reason);
  }
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child == 0) become(argv.data(), log, failure[1], parent);
  const int fork_reason = errno;
  ::close(log);
  ::close(failure[1]);
  int reason = 0;
  ssize_t count = 0;
  if (child > 0) {
    do count = ::read(failure[0], &reason, sizeof reason);
    while (count < 0 && errno == EINTR);
  }
  ::close(failure[0]);
  if (child < 0) fail("fork", fork_reason);
  pid_ = child;
  if (count > 0) {
    ::waitpid(child, nullptr, 0);
    pid_ = 0;
    fail("exec", reason);
  }
}

ChildProcess::~ChildProcess() {
  if (pid_ == 0 || poll()) return;
  ::kill(pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

ChildProcess::ChildProcess(ChildProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, 0)), status_(std::exchange(other.status_, std::nullopt)) {}

ChildProcess& ChildProcess::operator=(ChildProcess&& other) noexcept {
  std::swap(pid_, other.pid_);
  std::swap(status_, other.status_);
  return *this;
}

std::optional<ExitStatus> ChildProcess::poll() {
  if (status_) return status_;
  int raw = 0;
  if (::waitpid(pid_, &raw, WNOHANG) != pid_) return std::nullopt;
  status_ = WIFSIGNALED(raw) ? ExitStatus{.signal = WTERMSIG(raw)} : ExitStatus{.code = WEXITSTATUS(raw)};
  return status_;
}

void ChildProcess::send_signal(int signal) {
  if (!poll()) ::kill(pid_, signal);
}

std::optional<ExitStatus> ChildProcess::wait(std::chrono::milliseconds patience) {
  const auto deadline = std::chrono::steady_clock::now() + patience;
  // Readable once the child has ended. (glibc 2.36 declares pidfd_open without C linkage.)
  const int descriptor = static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0));
  while (!poll() && std::chrono::steady_clock::now() < deadline) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd ended = {.fd = descriptor, .events = POLLIN, .revents = 0};
    ::poll(&ended, 1, static_cast<int>(left.count()));
  }
  ::close(descriptor);
  return poll();
}

ExitStatus ChildProcess::stop(std::chrono::milliseconds patience) {
  send_signal(SIGTERM);
  if (const auto status = wait(patience)) return *status;
  send_signal(SIGKILL);
  return wait(std::chrono::hours(1)).value_or(ExitStatus{.signal = SIGKILL});
}

bool run_child(const std::vector<std::string>& command, const std::filesystem::path& log_file,
               const std::string& what) {
  ChildProcess child(command, log_file);
  const auto& stop = watch_stop_signals();
  while (!stop) {
    const auto ended = child.wait(std::chrono::milliseconds(250));
    if (!ended) continue;
    if (ended->success()) return true;
    throw Error(fmt::format("{}: {} {}; its messages are in {}", what,
                            std::filesystem::path(command.front()).filename().string(), ended->to_string(),
                            log_file.string()));
  }
  child.stop(std::chrono::seconds(5));
  return false;
}

}  // namespace allot::app
