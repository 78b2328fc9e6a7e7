// A child process of a test: started, killed, waited for with a deadline. Killed when it goes out of scope.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace allot::aggregator {

class Child {
 public:
  // `command` starts with the path of the executable. Its stdout comes here; its stderr is added to the file
  // `log`, or goes where the test's goes when that is empty.
  explicit Child(std::vector<std::string> command, const std::string& log = "") {
    int pipe_ends[2];
    if (::pipe2(pipe_ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe2 failed");
    out_ = pipe_ends[0];
    std::vector<char*> words;
    for (std::string& word : command) words.push_back(word.data());
    words.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, pipe_ends[1], STDOUT_FILENO);
    if (!log.empty()) {
      ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, log.c_str(), O_WRONLY | O_CREAT | O_APPEND,
                                         0644);
    }
    const int failure = ::posix_spawn(&pid_, words[0], &actions, nullptr, words.data(), environ);
    ::posix_spawn_file_actions_destroy(&actions);
    ::close(pipe_ends[1]);
    if (failure != 0) throw std::runtime_error("cannot start " + command[0]);
    pidfd_ = static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0));
  }
  ~Child() {
    if (pid_ == 0) return;
    kill();
    ::close(out_);
    ::close(pidfd_);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }

  // One line of its stdout, without the newline; shorter when it ended or the deadline passed.
  std::string line(std::chrono::milliseconds deadline) {
    std::string text;
    char byte = 0;
    pollfd readable{out_, POLLIN, 0};
    while (::poll(&readable, 1, static_cast<int>(deadline.count())) == 1 && ::read(out_, &byte, 1) == 1 &&
           byte != '\n') {
      text += byte;
    }
    return text;
  }

  // kill -9, and wait until it is gone.
  void kill() {
    if (exit_) return;
    ::kill(pid_, SIGKILL);
    (void)wait(std::chrono::minutes{1});
  }

  // Its exit status (128 + signal when one ended it), or nothing when it still runs after `deadline`.
  std::optional<int> wait(std::chrono::milliseconds deadline) {
    if (exit_) return exit_;
    pollfd ended{pidfd_, POLLIN, 0};
    if (::poll(&ended, 1, static_cast<int>(deadline.count())) != 1) return std::nullopt;
    int status = 0;
    ::waitpid(pid_, &status, 0);
    exit_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    return exit_;
  }

 private:
  pid_t pid_ = 0;
  int pidfd_ = -1;
  int out_ = -1;
  std::optional<int> exit_;
};

}  // namespace allot::aggregator
