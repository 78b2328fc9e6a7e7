// Runs the built tools as people do: words in; exit code, standard output and standard error out.
#pragma once

#include <sys/types.h>

#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace allot::app {

struct CommandResult {
  int code = 0;  // 128 + signal where a signal ended it
  std::string out;
  std::string err;
  double peak_mib = 0;  // its highest resident memory
};

// A command that runs while the test looks at it.
class RunningCommand {
 public:
  // `words[0]` is a name in the folder of built tools, or a path. `input` is its standard input.
  explicit RunningCommand(const std::vector<std::string>& words, const std::string& input = "");
  // Kills and reaps what still runs.
  ~RunningCommand();
  RunningCommand(const RunningCommand&) = delete;
  RunningCommand& operator=(const RunningCommand&) = delete;

  // The next line of standard error, without its end; waits for it. Nothing after the last.
  std::optional<std::string> next_error_line();
  // Reads lines until one contains `text` and returns it. Nothing when standard error ended before.
  std::optional<std::string> error_line_with(const std::string& text);
  void send_signal(int signal);
  // Waits for the end; `err` holds all of standard error, lines already read included.
  CommandResult wait();

 private:
  pid_t pid_ = 0;
  std::FILE* errors_ = nullptr;
  std::FILE* out_ = nullptr;
  std::string err_;
};

// Runs to the end.
CommandResult run_command(const std::vector<std::string>& words, const std::string& input = "");

// Makes a key file with `tool` keys new; returns the public key.
std::string make_key(const std::string& tool, const std::string& file);

// An empty directory for the running test.
std::filesystem::path fresh_directory();

}  // namespace allot::app
