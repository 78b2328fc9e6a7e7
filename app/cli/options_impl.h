// What an OptionSet knows of its options. Included by the sources of options.h alone: options.cc declares,
// options_parse.cc reads command lines, reads and writes config files, options_text.cc describes.
#pragma once

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "app/cli/options.h"

namespace allot::app {

inline std::string join(const std::vector<std::string>& words, std::string_view between) {
  std::string line;
  for (const std::string& word : words) {
    if (!line.empty()) line += between;
    line += word;
  }
  return line;
}

struct DeclaredOption {
  std::string name;
  std::string hint = {};
  std::string help = {};
  std::string range = {};                // "from 1 to 8", "one of a, b"; empty when any value is allowed
  std::vector<std::string> values = {};  // that completion offers
  bool is_flag = false;
  bool repeatable = false;
  std::string belongs_to = {};  // see OptionSet::Custom
  bool required = false;
  std::string required_unless = {};  // another option is given; empty: in any case
  bool given = false;
  std::vector<std::string> initial = {};  // its values before anything was read
  bool shows_default = true;              // in --help; false when `range` includes it
  bool in_config = true;                  // false for --help, --config and --dry-run
  // Sets the field; the returned fault (what was expected) is empty when the value was good.
  std::function<std::string(const std::string&)> set;
  // The field's current values; one unless repeatable.
  std::function<std::vector<std::string>()> get;
  std::function<void()> clear = [] {};  // of a repeatable option: flags replace the config file's values
  std::function<void()> require_files = [] {};  // see OptionSet::Custom
};

struct OptionSet::Impl {
  using Option = DeclaredOption;

  std::string command;
  std::string summary;
  std::string example;
  std::vector<Option> options;  // in the order of declaration
  std::vector<std::string> positionals;
  std::vector<std::string> faults;
  std::string log_level = "info";
  std::string log_format = "text";
  std::string config_file;
  bool show_help = false;
  bool dry_run = false;
  std::function<void()> resolve = [] {};

  Option& add(Option option) { return options.emplace_back(std::move(option)); }

  Option* find(std::string_view name) {
    const auto it = std::ranges::find(options, name, &Option::name);
    return it == options.end() ? nullptr : &*it;
  }

  // The option that our own code names. A name that was not declared is a bug of ours, not a wrong usage.
  Option& declared(std::string_view name) {
    if (Option* option = find(name)) return *option;
    throw std::logic_error("allot " + command + " declares no option --" + std::string(name) +
                           "; declare it first, or ask has() whether it is declared");
  }

  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const Option& option : options) all.push_back(option.name);
    return all;
  }

  // An option with a number in a range. `Field` is Number, or optional<Number> for an option that may have no
  // value. Only options.cc declares options, so it has the definition.
  template <class Number, class Field>
  void number(const char* name, Field* field, Number min, Number max, const char* hint, const char* help);

  // `where` is empty for the command line, else "FILE:LINE: ".
  void assign(Option& option, const std::string& value, const std::string& where);

  void read_command_line(std::vector<std::string> arguments, std::set<std::string>* on_command_line);
  void read_config(const std::set<std::string>& on_command_line);
  // Whether a value that the config file gives `option` is for another value of option.belongs_to than the
  // command line's; `in_file`: the values that the file gives.
  bool superseded(const Option& option, const std::map<std::string, std::string>& in_file,
                  const std::set<std::string>& on_command_line);
  void unknown(const std::string& name, const std::string& where);
};

}  // namespace allot::app
