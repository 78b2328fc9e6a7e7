// Options of a sub-command: each is declared once with its name, field, hint, range and help; the
// same name is its key in a config file (`name = value` a line, # comments). Flags override the file.
// --help, manual pages and completion are made of the same declarations (command_description.h). Completion
// is chosen by the hint: PATH, FILE, KEY and SCHEDULE take files, DIR takes directories, and a hint that ends
// in a comma and dots takes several values. Built on Boost.Program_options.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "app/cli/command_description.h"

namespace allot::app {

class OptionSet {
 public:
  // `example` is a command line that works, shown by --help.
  OptionSet(std::string command, std::string summary, std::string example);
  ~OptionSet();
  OptionSet(const OptionSet&) = delete;
  OptionSet& operator=(const OptionSet&) = delete;

  // Each call declares one option; the field's current value is the default that --help shows. Fields
  // must outlive parse().
  void text(const char* name, std::string* field, const char* hint, const char* help);
  void path(const char* name, std::filesystem::path* field, const char* help);
  // Without a default the field is empty, as it is after an empty value.
  void path(const char* name, std::optional<std::filesystem::path>* field, const char* help);
  void choice(const char* name, std::string* field, std::vector<std::string> choices, const char* help);
  // The same for a value of another type, which `read` reads and the function name() of its namespace writes.
  template <class Value>
  void choice(const char* option, Value* field, Value (*read)(std::string_view),
              std::vector<std::string> choices, const char* help) {
    choice(
        option, std::move(choices), [=](const std::string& text) { *field = read(text); },
        [=] { return std::string(name(*field)); }, help);
  }
  void integer(const char* name, int64_t* field, int64_t min, int64_t max, const char* hint,
               const char* help);
  void integer(const char* name, int32_t* field, int32_t min, int32_t max, const char* hint,
               const char* help);
  // Without a default the field is empty; `help` then says what applies.
  void integer(const char* name, std::optional<int64_t>* field, int64_t min, int64_t max, const char* hint,
               const char* help);
  void integer(const char* name, std::optional<int32_t>* field, int32_t min, int32_t max, const char* hint,
               const char* help);
  void real(const char* name, double* field, double min, double max, const char* hint, const char* help);
  void real(const char* name, std::optional<double>* field, double min, double max, const char* hint,
            const char* help);
  // The option --device: where the model runs, checked as parse_device (base/device.h) does. When the field
  // is empty by default, an empty value means no device.
  void device(std::string* field);
  // The option --devices: "all", or a list checked as parse_device_list (base/device.h) does and stored with
  // full names ("cuda:0" for "cuda"); an empty value means no devices.
  void devices(std::string* field, const char* help);
  void flag(const char* name, bool* field, const char* help);
  // May be given several times.
  void texts(const char* name, std::vector<std::string>* field, const char* hint, const char* help);
  // An option whose value its caller reads and prints.
  struct Custom {
    std::string name;
    std::string hint;
    std::string help;
    std::string range = {};   // what --help says about the values, "from 1 to 8; default 4"
    bool repeatable = false;  // set() is then called once per value
    // An option declared before whose value this one is for: where the command line gives that option another
    // value than the config file, this option's value in the file is left out, with a line in the log.
    std::string belongs_to = {};
    // Takes the value; returns what was expected instead, or an empty text when the value was good.
    std::function<std::string(const std::string&)> set;
    // The current values, which --dry-run prints; at most one unless repeatable.
    std::function<std::vector<std::string>()> get;
    // For a repeatable option: drops the values of the config file, which the command line replaces.
    std::function<void()> clear = [] {};
    // Throws NotFound, with what to do, when the value names files that are not here. parse() calls it before
    // the command runs; with --dry-run only after `resolve` has found that something is missing.
    std::function<void()> require_files = [] {};
  };
  void custom(Custom option);
  // The next bare word of the command line; the same name works as an option.
  void positional(const char* name, std::string* field, const char* hint, const char* help);
  // The same for a word that is one of `choices`.
  void positional_choice(const char* name, std::string* field, std::vector<std::string> choices,
                         const char* hint, const char* help);
  // Words that completion offers for an option that takes others as well. Throws std::logic_error for a name
  // that was not declared.
  void suggest(const char* name, std::vector<std::string> values);
  // After parse(), options named here that got no value are a UsageError. Throws std::logic_error for a name
  // that was not declared.
  void require(const char* name);
  // The same, but where the option `other` has a value. Throws as require() does.
  void require_unless(const char* other, const char* name);

  // `resolve` sets fields whose values depend on other options and on files. parse() calls it when the
  // options are valid, before --dry-run prints them, and passes on what it throws.
  void resolve_with(std::function<void()> resolve);

  enum class Parsed { kRun, kDone };  // kDone: --help or --dry-run was answered on stdout
  // Called once. Adds --help (--help=json prints describe() as a line of JSON), --config FILE, --dry-run
  // (prints the resolved config as a config file), --log-level and --log-format. Throws UsageError for an
  // unknown option or config key (naming the nearest known one), a value that does not parse or is out of
  // range (naming value and range), a repeated option, or a missing required one; several faults are reported
  // at once. Passes on what Custom::require_files throws.
  [[nodiscard]] Parsed parse(std::span<const std::string> arguments);

  // Gives the option `name` a value from another source, for example a file that another option names. Does
  // nothing when a flag or the config file has set the option. Throws UsageError when the option does not
  // take the value, and std::logic_error for a name that was not declared.
  void fill(const char* name, const std::string& value);
  // The option's current value as text; empty without one. Throws std::logic_error for a name that was not
  // declared.
  std::string value(const char* name) const;
  // Whether --dry-run was given.
  bool dry_run() const;
  // True when the option was declared.
  bool has(const char* name) const;
  // True when flag or config file gave the option a value that is not empty.
  bool given(const char* name) const;
  // True when flag or config file gave the option another value than its default. Throws std::logic_error for
  // a name that was not declared.
  bool changed(const char* name) const;
  // The options that were declared, in that order.
  std::vector<std::string> names() const;
  // The value of --log-level.
  const std::string& log_level() const;
  // A line `name = value` for every option after resolving.
  std::string resolved() const;
  std::string help() const;
  // What --help says, as data; `summary` is left empty, since the table of commands has it.
  CommandDescription describe() const;

 private:
  void choice(const char* name, std::vector<std::string> choices, std::function<void(const std::string&)> set,
              std::function<std::string()> get, const char* help);

  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace allot::app
