#include "evaluation/grader_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <pthread.h>
#include <spdlog/spdlog.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <csignal>
#include <cstring>
#include <ctime>
#include <mutex>
#include <utility>

#include "base/json.h"
#include "base/temporary_directory.h"
#include "evaluation/code_grader.h"
#include "evaluation/sandbox.h"

namespace allot::evaluation {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr size_t kMaxAnswerLine = 64 * 1024;
constexpr size_t kShown = 120;

struct Descriptor {
  int fd = -1;
  Descriptor() = default;
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { close(); }
  void close() {
    if (fd >= 0) ::close(std::exchange(fd, -1));
  }
};

void make_pipe(Descriptor* read_end, Descriptor* write_end) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    throw GradingFailure(fmt::format("cannot start the grader: pipe: {}", std::strerror(errno)));
  read_end->fd = ends[0];
  write_end->fd = ends[1];
}

// What the child needs, made before fork: after it only async-signal-safe calls are allowed.
struct Start {
  const char* command;
  const Sandbox* sandbox;
  int input, output, report;
  pid_t parent;
  rlimit memory, cpu, file, files, processes, core;
};

[[noreturn]] void run_command(const Start& start, bool isolated) {
  ::dup2(start.input, STDIN_FILENO);
  ::dup2(start.output, STDOUT_FILENO);
  ::setrlimit(RLIMIT_AS, &start.memory);
  ::setrlimit(RLIMIT_CPU, &start.cpu);
  ::setrlimit(RLIMIT_FSIZE, &start.file);
  ::setrlimit(RLIMIT_NOFILE, &start.files);
  ::setrlimit(RLIMIT_CORE, &start.core);
  // Without a user namespace the kernel counts all processes of the user, also those that are none of ours.
  if (isolated) ::setrlimit(RLIMIT_NPROC, &start.processes);
  for (const int signal : {SIGINT, SIGTERM, SIGPIPE, SIGHUP, SIGQUIT}) ::signal(signal, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  // Libraries open files without asking for their end at execve; before Linux 5.9 they stay.
  ::close_range(STDERR_FILENO + 1, ~0U, 0);
  ::execle("/bin/sh", "sh", "-c", start.command, static_cast<char*>(nullptr), start.sandbox->environment());
  ::_exit(127);
}

// The program's own process from here on, once it is where it will run.
[[noreturn]] void close_off_and_run(const Start& start, SandboxGaps gaps) {
  start.sandbox->close_off(&gaps);
  [[maybe_unused]] const ssize_t told = ::write(start.report, &gaps, sizeof gaps);
  run_command(start, gaps.namespaces == 0);
}

// Runs in the child. With namespaces it stays as the parent of the program, which is process 1 of its own:
// when that is killed, the kernel kills whatever it has started, also what left the process group.
[[noreturn]] void become(const Start& start) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != start.parent) ::_exit(127);  // the parent ended before the line above took effect
  SandboxGaps gaps;
  start.sandbox->separate(&gaps);
  if (gaps.namespaces != 0) close_off_and_run(start, gaps);
  const pid_t inner = ::fork();
  if (inner == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    close_off_and_run(start, gaps);
  }
  ::close(start.report);
  // The program's ends of the pipes must close when it ends.
  ::close(start.input);
  ::close(start.output);
  if (inner < 0) ::_exit(126);
  int status = 0;
  while (::waitpid(inner, &status, 0) < 0 && errno == EINTR) {
  }
  ::_exit(WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status));
}

void warn_once(const SandboxGaps& gaps) {
  const std::vector<std::string> parts = describe(gaps);
  if (parts.empty()) return;
  static std::once_flag told;
  std::call_once(told, [&] {
    spdlog::warn(
        "the grader runs in a part of its sandbox, since this kernel gives it {}; the rest holds (docs/security.md)",
        fmt::join(parts, "; "));
  });
}

// Blocks SIGPIPE of this thread and takes back what came meanwhile: a grader that ended must not end us.
class WithoutSigpipe {
 public:
  WithoutSigpipe() {
    sigset_t pending;
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~WithoutSigpipe() {
    const timespec now = {};
    if (!was_pending_) ::sigtimedwait(&pipe_, nullptr, &now);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  WithoutSigpipe(const WithoutSigpipe&) = delete;
  WithoutSigpipe& operator=(const WithoutSigpipe&) = delete;

 private:
  sigset_t pipe_{}, before_{};
  bool was_pending_ = false;
};

rlimit limit(int64_t value) {
  return {static_cast<rlim_t>(value), static_cast<rlim_t>(value)};
}

// The program while it runs. Its end kills it.
class Program {
 public:
  explicit Program(const GraderOptions& options) {
    if (options.scratch.empty()) own_scratch_.emplace();
    const Sandbox sandbox(own_scratch_ ? own_scratch_->path() : options.scratch);
    Descriptor child_input, child_output, report, child_report;
    make_pipe(&child_input, &input_);
    make_pipe(&output_, &child_output);
    make_pipe(&report, &child_report);
    ::fcntl(input_.fd, F_SETFL, O_NONBLOCK);
    Start start{.command = options.command.c_str(),
                .sandbox = &sandbox,
                .input = child_input.fd,
                .output = child_output.fd,
                .report = child_report.fd,
                .parent = ::getpid(),
                .memory = limit(options.memory_bytes),
                .cpu = limit(options.cpu_seconds),
                .file = limit(options.file_bytes),
                .files = limit(options.open_files),
                .processes = limit(options.processes),
                .core = limit(0)};
    pid_ = ::fork();
    if (pid_ == 0) become(start);
    if (pid_ < 0)
      throw GradingFailure(fmt::format("cannot start the grader: fork: {}", std::strerror(errno)));
    ::setpgid(pid_, pid_);  // here as well, so that the group is there when it is first killed
    child_report.close();
    SandboxGaps gaps;
    ssize_t count = 0;
    do {
      count = ::read(report.fd, &gaps, sizeof gaps);
    } while (count < 0 && errno == EINTR);
    if (count == sizeof gaps) warn_once(gaps);
  }
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() {
    ::kill(-pid_, SIGKILL);
    if (!reaped_) wait(0);
  }

  // Sends `line` and returns the answering one, or why there is none.
  struct Answer {
    std::string line;
    std::string failure = {};
  };
  Answer ask(std::string_view line, std::chrono::milliseconds patience) {
    const auto deadline = SteadyClock::now() + patience;
    std::string answer = std::exchange(rest_, {});
    if (!answer.empty())
      return {.line = "",
              .failure = "wrote more than one line for the reply before: " + answer.substr(0, kShown)};
    for (;;) {
      const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - SteadyClock::now()).count();
      if (left <= 0)
        return {.line = "", .failure = fmt::format("gave no answer within {} ms", patience.count())};
      pollfd both[2] = {{.fd = output_.fd, .events = POLLIN, .revents = 0},
                        {.fd = line.empty() ? -1 : input_.fd, .events = POLLOUT, .revents = 0}};
      if (::poll(both, 2, static_cast<int>(left)) < 0 && errno != EINTR)
        return {.line = "", .failure = fmt::format("poll: {}", std::strerror(errno))};
      if (both[1].revents != 0) {
        const WithoutSigpipe guard;
        const ssize_t count = ::write(input_.fd, line.data(), line.size());
        if (count > 0) line.remove_prefix(static_cast<size_t>(count));
        if (count < 0 && errno != EAGAIN && errno != EINTR) return {.line = "", .failure = ended()};
      }
      if (both[0].revents == 0) continue;
      char buffer[4096];
      const ssize_t count = ::read(output_.fd, buffer, sizeof buffer);
      if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
      if (count <= 0) return {.line = "", .failure = ended()};
      answer.append(buffer, static_cast<size_t>(count));
      const size_t end = answer.find('\n');
      if (end == std::string::npos && answer.size() > kMaxAnswerLine)
        return {.line = "", .failure = fmt::format("answered a line of more than {} bytes", kMaxAnswerLine)};
      if (end == std::string::npos) continue;
      if (!line.empty())
        return {.line = "", .failure = "answered before it had read the reply: " + answer.substr(0, kShown)};
      rest_ = answer.substr(end + 1);
      answer.resize(end);
      return {.line = std::move(answer)};
    }
  }

 private:
  // How the program ended. Its output may close a moment before it ends; one that goes on without it is
  // killed.
  std::string ended() {
    constexpr int kTries = 100;
    for (int i = 0; i < kTries && !reaped_; ++i) {
      if (wait(WNOHANG)) break;
      const timespec moment{.tv_sec = 0, .tv_nsec = 5'000'000};
      ::nanosleep(&moment, nullptr);
    }
    if (!reaped_) return "closed its stdout";
    if (WIFSIGNALED(status_))
      return fmt::format("was ended by signal {} ({})", WTERMSIG(status_), ::strsignal(WTERMSIG(status_)));
    const int code = WEXITSTATUS(status_);
    if (code == 127) return "ended with code 127: the shell found no such command";
    return fmt::format("ended with code {}{}", code,
                       code > 128 ? fmt::format(" (signal {})", code - 128) : "");
  }

  bool wait(int flags) {
    pid_t found = 0;
    do {
      found = ::waitpid(pid_, &status_, flags);
    } while (found < 0 && errno == EINTR);
    reaped_ = reaped_ || found == pid_ || found < 0;
    return reaped_;
  }

  std::optional<TemporaryDirectory> own_scratch_;  // goes after the program, which ~Program() ends
  Descriptor input_, output_;
  std::string rest_;
  pid_t pid_ = 0;
  int status_ = 0;
  bool reaped_ = false;
};

Grade read_answer(const std::string& line, const std::optional<std::string>& extracted) {
  const auto fail = [&](const std::string& what) {
    return GradingFailure(fmt::format("the grader answered {}: {}; expected a line {{\"score\": 0 to 1}}",
                                      what, line.substr(0, kShown)));
  };
  const nlohmann::json json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) throw fail("no JSON object");
  const auto score = json.find("score");
  if (score == json.end() || !score->is_number()) throw fail("no number \"score\"");
  Grade grade{.score = score->get<double>(), .extracted = extracted.has_value(), .answer = extracted};
  if (!(grade.score >= 0 && grade.score <= 1)) throw fail("a score that is not 0 to 1");
  const auto found = json.find("extracted");
  if (found == json.end()) {
    grade.extracted = grade.extracted || grade.score > 0;
    return grade;
  }
  if (!found->is_string() && !found->is_null())
    throw fail("an \"extracted\" that is neither a text nor null");
  grade.extracted = found->is_string();
  grade.answer = found->is_string() ? std::optional(found->get<std::string>()) : std::nullopt;
  return grade;
}

class GraderProcess final : public Grader {
 public:
  explicit GraderProcess(GraderOptions options) : options_(std::move(options)) {}

  Grade grade(const Question& question, std::string_view reply,
              const std::optional<std::string>& extracted) override {
    const nlohmann::json row = {{"id", question.id},
                                {"question", question.text},
                                {"answer", question.answer},
                                {"reply", std::string(reply)},
                                {"extracted", extracted ? nlohmann::json(*extracted) : nlohmann::json()},
                                {"fields", question.fields}};
    // A reply may end within a character.
    const std::string line = row.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
    if (!program_) program_ = std::make_unique<Program>(options_);
    const Program::Answer answer = program_->ask(line, options_.patience);
    ++asked_;
    try {
      if (!answer.failure.empty())
        throw GradingFailure(
            fmt::format("the grader `{}` {}", options_.command.substr(0, kShown), answer.failure));
      const Grade grade = read_answer(answer.line, extracted);
      ++graded_;
      return grade;
    } catch (const GradingFailure& failure) {
      program_.reset();
      throw GradingFailure(fmt::format(
          "{}; of the {} {} that it was given here {} {} a score, this one none; its messages are "
          "on stderr",
          failure.what(), asked_, asked_ == 1 ? "reply" : "replies", graded_, graded_ == 1 ? "has" : "have"));
    }
  }

 private:
  GraderOptions options_;
  int64_t asked_ = 0;  // replies, over all starts of the program
  int64_t graded_ = 0;
  std::unique_ptr<Program> program_;
};

}  // namespace

std::unique_ptr<Grader> make_grader(GraderOptions options) {
  return std::make_unique<GraderProcess>(std::move(options));
}

std::unique_ptr<Grader> make_grader(const std::string& command) {
  if (command.empty()) return nullptr;
  if (command == kCodeGrader) return make_code_grader();
  GraderOptions options;
  options.command = command;
  return make_grader(std::move(options));
}

void require_grader(const Task& task, const std::string& command) {
  if (!task.needs_grader()) return;
  if (task.runs_code()) {
    if (command == kCodeGrader) return;
    throw UsageError(fmt::format(
        "task {} is graded by running code that the model writes, in a sandbox that keeps it from writing and from the "
        "network, not from reading your files; --allow-code-execution allows it (docs/tasks.md)",
        task.name()));
  }
  if (!command.empty() && command != kCodeGrader) return;
  throw UsageError(
      fmt::format("task {} is graded by a program, which nobody else may choose for this machine; name "
                  "it with --grader COMMAND (docs/tasks.md)",
                  task.name()));
}

}  // namespace allot::evaluation
