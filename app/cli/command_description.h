// What a command line may hold, as data: the one source of --help, of the manual pages and of the completion
// of shells. OptionSet describes itself so; `--help=json` prints it, for commands whose options another
// executable declares.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace allot::app {

// What allot is for, in one sentence.
extern const std::string_view kPurpose;

// The word that asks a command for its description, and an executable for those of all its commands.
extern const std::string_view kHelpAsJson;

// What a word after an option is, as far as completion can help with it.
enum class Takes { kNothing, kValue, kFile, kDirectory };

struct OptionDescription {
  std::string name;        // without dashes
  std::string hint = {};   // "PATH", "N"; empty for a flag
  std::string help;        // what it is for
  std::string facts = {};  // "from 1 to 8; default 4"; may be empty
  Takes takes = Takes::kNothing;
  // Words that fit: all of them, unless it takes files as well or is a list.
  std::vector<std::string> values = {};
  bool list = false;  // several values may be given, separated by commas
  bool repeatable = false;

  // Help and facts: the text behind the option in --help and in a manual page.
  std::string text() const;
  friend bool operator==(const OptionDescription&, const OptionDescription&) = default;
};

struct CommandDescription {
  std::string name;     // "tune"; "bench tuner" for a form with options of its own
  std::string summary;  // the line of `allot --help`
  // What --help says first; empty, as all below, when the executable that has the command is missing.
  std::string title = {};
  std::string example = {};  // a command line that works
  // Names of the options that bare words stand for, in their order.
  std::vector<std::string> positionals = {};
  std::vector<OptionDescription> options = {};  // in the order of declaration

  // Whether the options are known.
  bool known() const { return !title.empty(); }
  // The command without its form: "bench" of "bench tuner".
  std::string command() const { return name.substr(0, name.find(' ')); }
  // Null for an option that is not declared.
  const OptionDescription* find(std::string_view option) const;
  friend bool operator==(const CommandDescription&, const CommandDescription&) = default;
};

// "[WHAT] [options]": what follows the command's name in a line of usage.
std::string usage_of(const CommandDescription& command);

// The text of --help.
std::string help_text(const CommandDescription& command);

// One JSON object on one line.
std::string to_json_line(const CommandDescription& command);
// The commands of lines that to_json_line() wrote. Throws CorruptFile, naming `source`, for anything else.
std::vector<CommandDescription> read_json_lines(const std::string& lines, const std::string& source);

}  // namespace allot::app
