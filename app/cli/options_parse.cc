#include <boost/program_options.hpp>
#include <iostream>
#include <map>

#include "app/cli/config_lines.h"
#include "app/cli/nearest_name.h"
#include "app/cli/options_impl.h"
#include "base/ascii.h"
#include "base/error.h"
#include "base/log.h"

namespace allot::app {
namespace {

namespace po = boost::program_options;

// A value as written in a config file: quoted where it would otherwise be read differently.
std::string config_value(const std::string& value) {
  if (trim(value) == value && value.find_first_of("#\"\n") == std::string::npos) return value;
  std::string quoted = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c == '\n' ? ' ' : c;
  }
  return quoted + '"';
}

// Splits a command line into options with their values and bare words; faults go to `faults`.
po::parsed_options tokenize(std::vector<std::string> arguments, const std::vector<DeclaredOption>& options,
                            std::vector<std::string>* faults) {
  // Boost.Program_options stops at an option without a value, or takes the next option as its value; so such
  // options are found first.
  for (size_t at = 0; at < arguments.size() && arguments[at] != "--";) {
    const auto option = arguments[at].starts_with("--")
                            ? std::ranges::find(options, arguments[at].substr(2), &DeclaredOption::name)
                            : options.end();
    const bool takes_value = option != options.end() && !option->is_flag;
    if (takes_value && (at + 1 == arguments.size() || arguments[at + 1].starts_with("--"))) {
      faults->push_back(arguments[at] + " needs a value " + option->hint);
      arguments.erase(arguments.begin() + static_cast<ptrdiff_t>(at));
    } else {
      at += takes_value ? 2 : 1;
    }
  }
  po::options_description description;
  for (const DeclaredOption& option : options) {
    auto* value = po::value<std::vector<std::string>>();
    if (option.is_flag) value->implicit_value({"true"}, "true");
    description.add_options()(option.name.c_str(), value);
  }
  using enum po::command_line_style::style_t;
  try {
    return po::command_line_parser(arguments)
        .options(description)
        .style(allow_long | long_allow_next | long_allow_adjacent)
        .allow_unregistered()
        .run();
  } catch (const po::error& error) {
    throw UsageError(error.what());
  }
}

}  // namespace

void OptionSet::Impl::assign(Option& option, const std::string& value, const std::string& where) {
  const std::string shown = where + (where.empty() ? "--" : "") + option.name;
  const std::string fault = option.set(value);
  if (!fault.empty()) faults.push_back(shown + " has the value '" + value + "'; " + fault);
  option.given = !value.empty();  // in a config file an empty value means no value
}

void OptionSet::Impl::unknown(const std::string& name, const std::string& where) {
  const std::string shown = where.empty() ? "unknown option --" : where + "unknown option ";
  const std::string dashes = where.empty() ? "--" : "";
  if (const auto nearest = nearest_name(name, names())) {
    faults.push_back(shown + name + "; did you mean " + dashes + *nearest + "?");
  } else {
    faults.push_back(shown + name + "; allot " + command + " --help lists the options");
  }
}

void OptionSet::Impl::read_command_line(std::vector<std::string> arguments,
                                        std::set<std::string>* on_command_line) {
  std::ranges::replace(arguments, std::string("-h"), std::string("--help"));
  const po::parsed_options parsed = tokenize(std::move(arguments), options, &faults);
  size_t next_positional = 0;
  bool after_unknown =
      false;  // a bare word after an unknown option is most likely its value, not another fault
  for (const auto& token : parsed.options) {
    if (token.string_key.empty() || token.position_key >= 0) {
      for (const std::string& word : token.value) {
        if (after_unknown) {
          after_unknown = false;
        } else if (word.starts_with('-') && word.size() > 1 && next_positional >= positionals.size()) {
          faults.push_back("unknown option " + word + "; options begin with two dashes");
        } else if (next_positional >= positionals.size()) {
          faults.push_back("'" + word + "' is not expected; options begin with two dashes");
        } else {
          const std::string& name = positionals[next_positional++];
          if (!on_command_line->insert(name).second) faults.push_back("--" + name + " is given twice");
          assign(*find(name), word, "");
        }
      }
      continue;
    }
    after_unknown = token.unregistered;
    if (token.unregistered) {
      unknown(token.string_key, "");
      continue;
    }
    Option& option = *find(token.string_key);
    const bool first = on_command_line->insert(option.name).second;
    if (!first && !option.repeatable) {
      faults.push_back("--" + option.name + " is given twice");
      continue;
    }
    if (first) option.clear();
    if (token.value.empty() && option.is_flag) assign(option, "true", "");
    for (const std::string& value : token.value) assign(option, value, "");
  }
}

void OptionSet::Impl::read_config(const std::set<std::string>& on_command_line) {
  struct Line {
    std::string where;
    Option* option;
    std::string value;
  };
  std::map<std::string, std::string> values;  // the last of a repeatable option
  std::vector<Line> read;
  for (const ConfigLine& line : read_config_lines(config_file, &faults)) {
    if (!line.section.empty()) {
      faults.push_back(line.where + "[" + line.section + "] begins a section, and config files have none");
      break;
    }
    Option* option = find(line.name);
    if (option == nullptr || !option->in_config) {
      unknown(line.name, line.where);
    } else if (!values.insert_or_assign(line.name, line.value).second && !option->repeatable) {
      faults.push_back(line.where + line.name + " is given twice");
    } else {
      read.push_back({line.where, option, line.value});
    }
  }
  for (const Line& entry : read) {
    Option& option = *entry.option;
    if (on_command_line.contains(option.name)) continue;
    if (superseded(option, values, on_command_line)) {
      spdlog::info("{}{} = {} is left out: it is for {} = {}, and --{} was given another value", entry.where,
                   option.name, entry.value, option.belongs_to, values.at(option.belongs_to),
                   option.belongs_to);
      continue;
    }
    if (!option.given) option.clear();
    assign(option, entry.value, entry.where);
  }
}

bool OptionSet::Impl::superseded(const Option& option, const std::map<std::string, std::string>& in_file,
                                 const std::set<std::string>& on_command_line) {
  const auto value = in_file.find(option.belongs_to);
  return value != in_file.end() && on_command_line.contains(option.belongs_to) &&
         declared(option.belongs_to).get() != std::vector{value->second};
}

OptionSet::Parsed OptionSet::parse(std::span<const std::string> arguments) {
  choice("log-level", &impl_->log_level, {"trace", "debug", "info", "warn", "error", "off"},
         "log lines of this level and above go to stderr");
  choice("log-format", &impl_->log_format, {"text", "json"},
         "log lines as text, or as a JSON object each with time, level, name and message");
  text("config", &impl_->config_file, "FILE",
       "read options from FILE, one 'name = value' per line; the command line overrides them");
  flag("dry-run", &impl_->dry_run, "print the resolved options as a config file and do nothing else");
  flag("help", &impl_->show_help, "print this help");
  for (const char* name : {"config", "dry-run", "help"}) impl_->find(name)->in_config = false;
  if (std::ranges::find(arguments, kHelpAsJson) != arguments.end()) {
    std::cout << to_json_line(describe());
    return Parsed::kDone;
  }

  for (Impl::Option& option : impl_->options) option.initial = option.get();
  std::set<std::string> on_command_line;
  impl_->read_command_line({arguments.begin(), arguments.end()}, &on_command_line);
  if (impl_->show_help) {
    std::cout << help();
    return Parsed::kDone;
  }
  if (!impl_->config_file.empty()) impl_->read_config(on_command_line);
  for (const Impl::Option& option : impl_->options) {
    const Impl::Option* other = impl_->find(option.required_unless);
    if (option.required && !option.given && (other == nullptr || !other->given)) {
      impl_->faults.push_back("--" + option.name + " is missing: " + option.help);
    }
  }
  if (!impl_->faults.empty()) {
    throw UsageError(join(impl_->faults, "; "));
  }
  if (impl_->log_format == "json") log_as_json();
  spdlog::set_level(spdlog::level::from_str(impl_->log_level));
  const auto require_files = [&] {
    for (const Impl::Option& option : impl_->options) option.require_files();
  };
  // A config is often written where its files are not: a dry run answers as far as it can without them.
  if (!impl_->dry_run) require_files();
  try {
    impl_->resolve();
  } catch (const NotFound&) {
    require_files();  // says what to do, not only that a file is missing
    throw;
  }
  if (!impl_->dry_run) return Parsed::kRun;
  std::cout << resolved();
  return Parsed::kDone;
}

std::string OptionSet::resolved() const {
  std::string lines = "# allot " + impl_->command + "\n";
  for (const Impl::Option& option : impl_->options) {
    if (!option.in_config) continue;
    for (const std::string& value : option.get()) {
      const std::string written = config_value(value);
      lines += option.name + " =" + (written.empty() ? "" : " " + written) + "\n";
    }
  }
  return lines;
}

}  // namespace allot::app
