// A child process: started with its output in a log file, and ended at the latest when this process ends.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace allot::app {

// How a process ended.
struct ExitStatus {
  int code = 0;    // 0 when a signal ended it
  int signal = 0;  // 0 when it exited by itself
  bool success() const { return code == 0 && signal == 0; }
  // "exited with code 1", "was killed by signal 9 (Killed)".
  std::string to_string() const;
};

class ChildProcess {
 public:
  // Starts command[0] (a path) with the words after it. Standard input is empty; standard output and error
  // are appended to `log_file`. The child leads a process group of its own, so that Ctrl-C in a terminal
  // reaches only the parent, and gets SIGTERM when the thread that started it ends. Throws Error when it
  // cannot be started.
  ChildProcess(const std::vector<std::string>& command, const std::filesystem::path& log_file);
  // Kills and reaps a child that still runs.
  ~ChildProcess();
  ChildProcess(ChildProcess&& other) noexcept;
  ChildProcess& operator=(ChildProcess&& other) noexcept;

  pid_t pid() const { return pid_; }
  // How the child ended; nothing while it runs. Never blocks.
  std::optional<ExitStatus> poll();
  void send_signal(int signal);
  // Waits for the child's end, at most for `patience`.
  std::optional<ExitStatus> wait(std::chrono::milliseconds patience);
  // SIGTERM, then SIGKILL when the child has not ended within `patience`.
  ExitStatus stop(std::chrono::milliseconds patience);

 private:
  pid_t pid_ = 0;  // 0 after a move
  std::optional<ExitStatus> status_;
};

// Runs a command to its end: true when it succeeds, false when a signal asks this process to stop
// (stop_signal.h), which stops the child, too. Throws Error with `what`, how it ended and `log_file`.
bool run_child(const std::vector<std::string>& command, const std::filesystem::path& log_file,
               const std::string& what);

}  // namespace allot::app
