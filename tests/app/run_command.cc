#include "tests/app/run_command.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <stdexcept>

namespace allot::app {
namespace {

// Everything a stream holds from its start.
std::string content(std::FILE* file) {
  std::rewind(file);
  std::string text;
  char buffer[4096];
  while (const size_t count = std::fread(buffer, 1, sizeof buffer, file)) text.append(buffer, count);
  return text;
}

// Names of parameterised tests have slashes.
std::string replace_slashes(std::string name) {
  std::ranges::replace(name, '/', '-');
  return name;
}

}  // namespace

RunningCommand::RunningCommand(const std::vector<std::string>& words, const std::string& input) {
  std::vector<std::string> copy = words;
  if (copy[0].find('/') == std::string::npos) copy[0] = std::string(ALLOT_BIN_DIR) + "/" + copy[0];
  std::vector<char*> argv;
  for (std::string& word : copy) argv.push_back(word.data());
  argv.push_back(nullptr);

  std::FILE* in = std::tmpfile();
  out_ = std::tmpfile();
  int errors[2];
  if (in == nullptr || out_ == nullptr || ::pipe(errors) != 0)
    throw std::runtime_error("no temporary file or pipe");
  std::fwrite(input.data(), 1, input.size(), in);
  std::rewind(in);
  pid_ = ::fork();
  if (pid_ == 0) {
    ::setpgid(0, 0);
    ::dup2(::fileno(in), STDIN_FILENO);
    ::dup2(::fileno(out_), STDOUT_FILENO);
    ::dup2(errors[1], STDERR_FILENO);
    ::close(errors[0]);
    ::close(errors[1]);
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  std::fclose(in);
  ::close(errors[1]);
  errors_ = ::fdopen(errors[0], "r");
}

RunningCommand::~RunningCommand() {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  std::fclose(errors_);
  std::fclose(out_);
}

std::optional<std::string> RunningCommand::next_error_line() {
  char* line = nullptr;
  size_t capacity = 0;
  const ssize_t length = ::getline(&line, &capacity, errors_);
  std::optional<std::string> text;
  if (length >= 0) {
    err_.append(line, static_cast<size_t>(length));
    text.emplace(line, static_cast<size_t>(length));
    if (text->ends_with('\n')) text->pop_back();
  }
  std::free(line);
  return text;
}

std::optional<std::string> RunningCommand::error_line_with(const std::string& text) {
  while (auto line = next_error_line()) {
    if (line->find(text) != std::string::npos) return line;
  }
  return std::nullopt;
}

void RunningCommand::send_signal(int signal) {
  ::kill(pid_, signal);
}

CommandResult RunningCommand::wait() {
  while (next_error_line()) {
  }
  int raw = 0;
  rusage usage = {};
  while (::wait4(pid_, &raw, 0, &usage) < 0 && errno == EINTR) {
  }
  pid_ = 0;
  return {.code = WIFSIGNALED(raw) ? 128 + WTERMSIG(raw) : WEXITSTATUS(raw),
          .out = content(out_),
          .err = err_,
          .peak_mib = static_cast<double>(usage.ru_maxrss) / 1024};
}

CommandResult run_command(const std::vector<std::string>& words, const std::string& input) {
  return RunningCommand(words, input).wait();
}

std::string make_key(const std::string& tool, const std::string& file) {
  const auto made = run_command({tool, "keys", "new", "--out", file});
  EXPECT_EQ(made.code, 0) << made.err;
  return made.out.substr(0, made.out.find('\n'));
}

std::filesystem::path fresh_directory() {
  const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
  const auto path = std::filesystem::path(::testing::TempDir()) / "allot-tests" /
                    replace_slashes(std::string(test->test_suite_name()) + "." + test->name());
  std::filesystem::remove_all(path);
  std::filesystem::create_directories(path);
  return path;
}

}  // namespace allot::app
