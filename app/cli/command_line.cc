#include "app/cli/command_line.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iomanip>
#include <iostream>
#include <sstream>
#include <vector>

#include "app/cli/command_description.h"
#include "app/cli/nearest_name.h"
#include "app/cli/own_executable.h"
#include "app/cli/version.h"
#include "base/error.h"
#include "base/log.h"

namespace allot::app {
namespace {

// An executable beside this one, and what to say when it is missing.
struct Companion {
  const char* name;
  const char* need;    // why the command needs it
  const char* remedy;  // how to build it
};

// The executable that has the command. Only `bench attention` needs CUDA.
Companion companion_of(std::span<const std::string> arguments) {
  if (arguments.size() > 1 && arguments[0] == "bench" && arguments[1] == "attention") {
    return {"allot-bench", "this command runs CUDA kernels",
            "build with LibTorch and nvcc (ALLOT_WITH_TORCH and ALLOT_WITH_CUDA are on)"};
  }
  const bool devices = !arguments.empty() && arguments[0] == "devices";
  return {"allot-model",
          devices ? "this command asks the program that runs models for its devices"
                  : "this command runs a model",
          "build with LibTorch (cmake --preset cpu, then ninja -C build)"};
}

// Messages are one line, even when the text of a library has several.
std::string one_line(std::string text) {
  std::ranges::replace(text, '\n', ' ');
  return text;
}

int run_guarded(const Command& command, std::span<const std::string> arguments) {
  const auto report = [&](const char* text) { report_error(command.name, one_line(text)); };
  try {
    set_up_logging(std::string("allot ") + command.name, "info");
    if (command.run == nullptr) hand_over(arguments);
    const int code = command.run(arguments.subspan(1));
    // A full disk or a closed pipe is noticed only when the buffer is written; a lost result is a failure.
    if (!std::cout.flush()) throw StorageError("cannot write to standard output");
    return code;
  } catch (const Error& error) {
    report(error.what());
    return error.exit_code();
  } catch (const std::exception& error) {
    report(error.what());
    return 1;
  }
}

// Standard output as text while it lives: a command's options are declared, and so can be printed, only as it
// runs.
class CapturedOutput {
 public:
  CapturedOutput() : before_(std::cout.rdbuf(text_.rdbuf())) {}
  ~CapturedOutput() { std::cout.rdbuf(before_); }
  CapturedOutput(const CapturedOutput&) = delete;
  CapturedOutput& operator=(const CapturedOutput&) = delete;
  std::string text() const { return text_.str(); }

 private:
  std::ostringstream text_;
  std::streambuf* before_;
};

// The description of a command, or of each of its forms.
std::vector<CommandDescription> describe(const Command& command) {
  if (command.run == nullptr || command.described_elsewhere)
    return {{.name = command.name, .summary = command.summary}};
  std::vector<CommandDescription> described;
  for (const std::string_view form : command.forms) {
    if (form.empty() && !described.empty()) continue;
    std::vector<std::string> words;
    if (!form.empty()) words.emplace_back(form);
    words.emplace_back(kHelpAsJson);
    std::string answer;
    {
      const CapturedOutput output;
      (void)command.run(words);
      answer = output.text();
    }
    for (CommandDescription& found : read_json_lines(answer, command.name)) {
      found.name = command.name;
      if (!form.empty()) found.name.append(" ").append(form);
      found.summary = command.summary;
      described.push_back(std::move(found));
    }
  }
  return described;
}

}  // namespace

void hand_over(std::span<const std::string> arguments) {
  const Companion companion = companion_of(arguments);
  const std::filesystem::path program = own_directory() / companion.name;
  if (!std::filesystem::exists(program)) {
    throw Unsupported(std::string(companion.need) + ", but " + program.string() + " was not built; " +
                      companion.remedy);
  }
  std::vector<std::string> words = {program.string()};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  ::execv(program.c_str(), argv.data());
  throw Error("cannot start " + program.string() + ": " + std::strerror(errno));
}

std::string command_list(std::span<const Command> commands) {
  std::ostringstream out;
  for (const Command& command : commands) {
    out << "  " << std::left << std::setw(12) << command.name << command.summary << '\n';
  }
  return out.str();
}

int run_command_line(std::span<const Command> commands, std::span<const std::string> arguments) {
  const std::string first = arguments.empty() ? "" : arguments.front();
  if (first == "--version" || first == "version") {
    std::cout << "allot " << version() << '\n';
    return 0;
  }
  if (first.empty() || first == "--help" || first == "-h" || first == "help") {
    (first.empty() ? std::cerr : std::cout)
        << kPurpose << "\n\nUsage: allot COMMAND [options]\n\n"
        << command_list(commands)
        << "\nallot COMMAND --help describes one command; allot --version prints the version.\n";
    return first.empty() ? 2 : 0;
  }
  if (first == kHelpAsJson) {
    for (const Command& known : commands)
      for (const CommandDescription& description : describe(known)) std::cout << to_json_line(description);
    return std::cout.flush() ? 0 : 1;
  }
  const auto command =
      std::ranges::find_if(commands, [&](const Command& known) { return known.name == first; });
  if (command != commands.end()) return run_guarded(*command, arguments);

  std::vector<std::string> names;
  for (const Command& known : commands) names.emplace_back(known.name);
  const auto nearest = nearest_name(first, names);
  std::cerr << "allot: unknown command '" << first << "'; "
            << (nearest ? "did you mean '" + *nearest + "'?" : "allot --help lists the commands")
            << std::endl;
  return 2;
}

}  // namespace allot::app
