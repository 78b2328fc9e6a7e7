#include "app/cli/options.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <boost/program_options.hpp>
#include <charconv>
#include <cmath>
#include <functional>
#include <iostream>
#include <set>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "app/cli/nearest_name.h"
#include "base/device.h"
#include "base/error.h"
#include "base/file.h"

namespace allot::app {
namespace {

namespace po = boost::program_options;

template <class Number>
std::string format_number(Number value) {
  char buffer[64];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  return {buffer, end};
}

// Reads the whole text as a number, else gives nothing. NaN and infinities do not count as numbers.
template <class Number>
std::optional<Number> parse_number(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  if constexpr (std::is_floating_point_v<Number>) {
    if (!std::isfinite(value)) return std::nullopt;
  }
  return value;
}

std::string join(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) line += (line.empty() ? "" : ", ") + word;
  return line;
}

std::string_view trim(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r";
  const size_t first = text.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

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

// The value after `=` on a line of a config file; nothing when a quote is not closed or is followed
// by other text.
std::optional<std::string> parse_config_value(std::string_view text) {
  if (!text.starts_with('"')) {
    for (size_t at = text.find('#'); at != std::string_view::npos; at = text.find('#', at + 1)) {
      if (at == 0 || text[at - 1] == ' ' || text[at - 1] == '\t') {
        text = text.substr(0, at);
        break;
      }
    }
    return std::string(trim(text));
  }
  std::string value;
  for (size_t at = 1; at < text.size(); ++at) {
    if (text[at] == '\\' && at + 1 < text.size()) {
      value += text[++at];
    } else if (text[at] == '"') {
      const std::string_view rest = trim(text.substr(at + 1));
      if (rest.empty() || rest.starts_with('#')) return value;
      return std::nullopt;
    } else {
      value += text[at];
    }
  }
  return std::nullopt;
}

// What the word after an option is, by its hint.
Takes takes_by(std::string_view hint) {
  for (const std::string_view file : {"PATH", "FILE", "KEY", "SCHEDULE"})
    if (hint == file) return Takes::kFile;
  if (hint == "DIR") return Takes::kDirectory;
  return hint.empty() ? Takes::kNothing : Takes::kValue;
}

}  // namespace

struct OptionSet::Impl {
  struct Option {
    std::string name;
    std::string hint = {};
    std::string help = {};
    std::string range = {};                // "from 1 to 8", "one of a, b"; empty when any value is allowed
    std::vector<std::string> values = {};  // that completion offers
    bool is_flag = false;
    bool repeatable = false;
    bool required = false;
    bool given = false;
    bool shows_default = true;  // in --help; false when `range` includes it
    bool in_config = true;      // false for --help, --config and --dry-run
    // Sets the field; the returned fault (what was expected) is empty when the value was good.
    std::function<std::string(const std::string&)> set;
    // The field's current values; one unless repeatable.
    std::function<std::vector<std::string>()> get;
    std::function<void()> clear = [] {};  // of a repeatable option: flags replace the config file's values
    std::function<void()> require_files = [] {};  // see OptionSet::Custom
  };

  std::string command;
  std::string summary;
  std::string example;
  std::vector<Option> options;  // in the order of declaration
  std::vector<std::string> positionals;
  std::vector<std::string> faults;
  std::string log_level = "info";
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

  // `Field` is Number, or optional<Number> for an option that may have no value.
  template <class Number, class Field>
  void number(const char* name, Field* field, Number min, Number max, const char* hint, const char* help) {
    const std::string range = max == std::numeric_limits<Number>::max()
                                  ? "at least " + format_number(min)
                                  : "from " + format_number(min) + " to " + format_number(max);
    add({.name = name,
         .hint = hint,
         .help = help,
         .range = range,
         .set =
             [=](const std::string& text) {
               const auto value = parse_number<Number>(text);
               const char* kind = std::is_integral_v<Number> ? "a whole number " : "a number ";
               if (!value || *value < min || *value > max) return kind + range + " is expected";
               *field = *value;
               return std::string();
             },
         // A default outside the range means that there is no default.
         .get =
             [=] {
               const std::optional<Number> value = *field;
               const bool unset = !value || *value < min || *value > max;
               return unset ? std::vector<std::string>() : std::vector{format_number(*value)};
             }});
  }

  // `where` is empty for the command line, else "FILE:LINE: ".
  void assign(Option& option, const std::string& value, const std::string& where) {
    const std::string shown = where + (where.empty() ? "--" : "") + option.name;
    const std::string fault = option.set(value);
    if (!fault.empty()) faults.push_back(shown + " has the value '" + value + "'; " + fault);
    option.given = !value.empty();  // in a config file an empty value means no value
  }

  void read_command_line(std::vector<std::string> arguments, std::set<std::string>* on_command_line);
  void read_config(const std::set<std::string>& on_command_line);
  po::parsed_options tokenize(std::vector<std::string> arguments);
  void unknown(const std::string& name, const std::string& where);
};

void OptionSet::Impl::unknown(const std::string& name, const std::string& where) {
  const std::string shown = where.empty() ? "unknown option --" : where + "unknown option ";
  const std::string dashes = where.empty() ? "--" : "";
  if (const auto nearest = nearest_name(name, names())) {
    faults.push_back(shown + name + "; did you mean " + dashes + *nearest + "?");
  } else {
    faults.push_back(shown + name + "; allot " + command + " --help lists the options");
  }
}

po::parsed_options OptionSet::Impl::tokenize(std::vector<std::string> arguments) {
  // Boost.Program_options stops at an option without a value, or takes the next option as its value; so such
  // options are found first.
  for (size_t at = 0; at < arguments.size() && arguments[at] != "--";) {
    const Option* option = arguments[at].starts_with("--") ? find(arguments[at].substr(2)) : nullptr;
    const bool takes_value = option != nullptr && !option->is_flag;
    if (takes_value && (at + 1 == arguments.size() || arguments[at + 1].starts_with("--"))) {
      faults.push_back(arguments[at] + " needs a value " + option->hint);
      arguments.erase(arguments.begin() + static_cast<ptrdiff_t>(at));
    } else {
      at += takes_value ? 2 : 1;
    }
  }
  po::options_description description;
  for (const Option& option : options) {
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

void OptionSet::Impl::read_command_line(std::vector<std::string> arguments,
                                        std::set<std::string>* on_command_line) {
  std::ranges::replace(arguments, std::string("-h"), std::string("--help"));
  const po::parsed_options parsed = tokenize(std::move(arguments));
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
  std::istringstream lines(read_file(config_file));
  std::set<std::string> seen;
  std::string line;
  for (int64_t number = 1; std::getline(lines, line); ++number) {
    const std::string_view text = trim(line);
    if (text.empty() || text.starts_with('#')) continue;
    const std::string where = config_file + ":" + std::to_string(number) + ": ";
    const size_t equals = text.find('=');
    if (equals == std::string_view::npos) {
      faults.push_back(where + "'" + std::string(text) + "' is no 'name = value'");
      continue;
    }
    const std::string name(trim(text.substr(0, equals)));
    const auto value = parse_config_value(trim(text.substr(equals + 1)));
    Option* option = find(name);
    if (option == nullptr || !option->in_config) {
      unknown(name, where);
    } else if (!value) {
      faults.push_back(where + name + " has an open quote or text after its quote");
    } else if (!seen.insert(name).second && !option->repeatable) {
      faults.push_back(where + name + " is given twice");
    } else if (!on_command_line.contains(name)) {
      if (!option->given) option->clear();
      assign(*option, *value, where);
    }
  }
}

OptionSet::OptionSet(std::string command, std::string summary, std::string example)
    : impl_(std::make_unique<Impl>()) {
  impl_->command = std::move(command);
  impl_->summary = std::move(summary);
  impl_->example = std::move(example);
}

OptionSet::~OptionSet() = default;

void OptionSet::text(const char* name, std::string* field, const char* hint, const char* help) {
  impl_->add({.name = name,
              .hint = hint,
              .help = help,
              .set =
                  [=](const std::string& value) {
                    *field = value;
                    return std::string();
                  },
              .get = [=] { return std::vector{*field}; }});
}

void OptionSet::path(const char* name, std::filesystem::path* field, const char* help) {
  impl_->add({.name = name,
              .hint = "PATH",
              .help = help,
              .set =
                  [=](const std::string& value) {
                    *field = value;
                    return std::string();
                  },
              .get = [=] { return std::vector{field->string()}; }});
}

void OptionSet::path(const char* name, std::optional<std::filesystem::path>* field, const char* help) {
  impl_->add({.name = name,
              .hint = "PATH",
              .help = help,
              .set =
                  [=](const std::string& value) {
                    field->reset();
                    if (!value.empty()) *field = value;
                    return std::string();
                  },
              .get = [=] { return *field ? std::vector{(*field)->string()} : std::vector<std::string>{}; }});
}

void OptionSet::choice(const char* name, std::string* field, std::vector<std::string> choices,
                       const char* help) {
  choice(
      name, std::move(choices), [=](const std::string& value) { *field = value; }, [=] { return *field; },
      help);
}

void OptionSet::choice(const char* name, std::vector<std::string> choices,
                       std::function<void(const std::string&)> set, std::function<std::string()> get,
                       const char* help) {
  impl_->add({.name = name,
              .hint = "NAME",
              .help = help,
              .range = "one of " + join(choices),
              .values = choices,
              .set =
                  [=](const std::string& value) {
                    if (std::ranges::find(choices, value) == choices.end()) {
                      const auto nearest = nearest_name(value, choices);
                      return "one of " + join(choices) + " is expected" +
                             (nearest ? "; did you mean " + *nearest + "?" : "");
                    }
                    set(value);
                    return std::string();
                  },
              .get = [=] { return std::vector{get()}; }});
}

void OptionSet::integer(const char* name, int64_t* field, int64_t min, int64_t max, const char* hint,
                        const char* help) {
  impl_->number(name, field, min, max, hint, help);
}

void OptionSet::integer(const char* name, int32_t* field, int32_t min, int32_t max, const char* hint,
                        const char* help) {
  impl_->number(name, field, min, max, hint, help);
}

void OptionSet::integer(const char* name, std::optional<int64_t>* field, int64_t min, int64_t max,
                        const char* hint, const char* help) {
  impl_->number(name, field, min, max, hint, help);
}

void OptionSet::integer(const char* name, std::optional<int32_t>* field, int32_t min, int32_t max,
                        const char* hint, const char* help) {
  impl_->number(name, field, min, max, hint, help);
}

void OptionSet::real(const char* name, std::optional<double>* field, double min, double max, const char* hint,
                     const char* help) {
  impl_->number(name, field, min, max, hint, help);
}

void OptionSet::real(const char* name, double* field, double min, double max, const char* hint,
                     const char* help) {
  impl_->number(name, field, min, max, hint, help);
}

void OptionSet::device(std::string* field) {
  impl_->add({.name = "device",
              .hint = "DEVICE",
              .help = "where the model runs: cpu, cuda or cuda:N",
              .values = {"cpu", "cuda"},
              .set =
                  [=, may_be_empty = field->empty()](const std::string& value) {
                    if (value.empty() && may_be_empty) return std::string();
                    try {
                      *field = parse_device(value).name();
                    } catch (const InvalidArgument&) {
                      return std::string("cpu, cuda or cuda:N is expected");
                    }
                    return std::string();
                  },
              .get = [=] { return std::vector{*field}; }});
}

void OptionSet::devices(std::string* field, const char* help) {
  impl_->add({.name = "devices",
              .hint = "LIST",
              .help = help,
              .values = {"all", "cpu", "cuda"},
              .set =
                  [=](const std::string& value) {
                    if (value.empty() || value == "all") {
                      *field = value;
                      return std::string();
                    }
                    try {
                      std::string names;
                      for (const Device& device : parse_device_list(value)) {
                        if (!names.empty()) names += ',';
                        names += device.name();
                      }
                      *field = names;
                    } catch (const InvalidArgument& error) {
                      return std::string("all or a list like cuda:0,cuda:2,cpu is expected (") +
                             error.what() + ")";
                    }
                    return std::string();
                  },
              .get = [=] { return std::vector{*field}; }});
}

void OptionSet::flag(const char* name, bool* field, const char* help) {
  impl_->add({.name = name,
              .help = help,
              .is_flag = true,
              .set =
                  [=](const std::string& value) {
                    if (value != "true" && value != "false") return std::string("true or false is expected");
                    *field = value == "true";
                    return std::string();
                  },
              .get = [=] { return std::vector<std::string>{*field ? "true" : "false"}; }});
}

void OptionSet::texts(const char* name, std::vector<std::string>* field, const char* hint, const char* help) {
  impl_->add({.name = name,
              .hint = hint,
              .help = help,
              .repeatable = true,
              .set =
                  [=](const std::string& value) {
                    field->push_back(value);
                    return std::string();
                  },
              .get = [=] { return *field; },
              .clear = [=] { field->clear(); }});
}

void OptionSet::custom(Custom option) {
  impl_->add({.name = std::move(option.name),
              .hint = std::move(option.hint),
              .help = std::move(option.help),
              .range = std::move(option.range),
              .repeatable = option.repeatable,
              .shows_default = false,
              .set = std::move(option.set),
              .get = std::move(option.get),
              .clear = std::move(option.clear),
              .require_files = std::move(option.require_files)});
}

void OptionSet::positional(const char* name, std::string* field, const char* hint, const char* help) {
  text(name, field, hint, help);
  impl_->positionals.emplace_back(name);
}

void OptionSet::positional_choice(const char* name, std::string* field, std::vector<std::string> choices,
                                  const char* hint, const char* help) {
  choice(name, field, std::move(choices), help);
  impl_->declared(name).hint = hint;
  impl_->positionals.emplace_back(name);
}

void OptionSet::suggest(const char* name, std::vector<std::string> values) {
  impl_->declared(name).values = std::move(values);
}

void OptionSet::require(const char* name) {
  impl_->declared(name).required = true;
}

OptionSet::Parsed OptionSet::parse(std::span<const std::string> arguments) {
  choice("log-level", &impl_->log_level, {"trace", "debug", "info", "warn", "error", "off"},
         "log lines of this level and above go to stderr");
  text("config", &impl_->config_file, "FILE",
       "read options from FILE, one 'name = value' per line; the command line overrides them");
  flag("dry-run", &impl_->dry_run, "print the resolved options as a config file and do nothing else");
  flag("help", &impl_->show_help, "print this help");
  for (const char* name : {"config", "dry-run", "help"}) impl_->find(name)->in_config = false;
  if (std::ranges::find(arguments, kHelpAsJson) != arguments.end()) {
    std::cout << to_json_line(describe());
    return Parsed::kDone;
  }

  std::set<std::string> on_command_line;
  impl_->read_command_line({arguments.begin(), arguments.end()}, &on_command_line);
  if (impl_->show_help) {
    std::cout << help();
    return Parsed::kDone;
  }
  if (!impl_->config_file.empty()) impl_->read_config(on_command_line);
  for (const Impl::Option& option : impl_->options) {
    if (option.required && !option.given) {
      impl_->faults.push_back("--" + option.name + " is missing: " + option.help);
    }
  }
  if (!impl_->faults.empty()) {
    std::string message;
    for (const std::string& fault : impl_->faults) message += (message.empty() ? "" : "; ") + fault;
    throw UsageError(message);
  }
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

void OptionSet::resolve_with(std::function<void()> resolve) {
  impl_->resolve = std::move(resolve);
}

bool OptionSet::has(const char* name) const {
  return impl_->find(name) != nullptr;
}

void OptionSet::fill(const char* name, const std::string& value) {
  const Impl::Option& option = impl_->declared(name);
  if (option.given) return;
  const std::string fault = option.set(value);
  if (!fault.empty()) throw UsageError("--" + option.name + " cannot be '" + value + "'; " + fault);
}

std::string OptionSet::value(const char* name) const {
  const std::vector<std::string> values = impl_->declared(name).get();
  return values.empty() ? "" : values.front();
}

bool OptionSet::dry_run() const {
  return impl_->dry_run;
}

bool OptionSet::given(const char* name) const {
  const auto* option = impl_->find(name);
  return option != nullptr && option->given;
}

const std::string& OptionSet::log_level() const {
  return impl_->log_level;
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

std::string OptionSet::help() const {
  return help_text(describe());
}

CommandDescription OptionSet::describe() const {
  CommandDescription command = {.name = impl_->command,
                                .summary = {},
                                .title = impl_->summary,
                                .example = impl_->example,
                                .positionals = impl_->positionals,
                                .options = {}};
  for (const Impl::Option& option : impl_->options) {
    std::string facts = option.range;
    const auto values = option.get();
    if (option.required) {
      facts += facts.empty() ? "required" : "; required";
    } else if (option.shows_default && !option.is_flag && !values.empty() && !values.front().empty()) {
      facts += (facts.empty() ? "default " : "; default ") + values.front();
    }
    const std::string_view hint = option.hint;
    command.options.push_back({.name = option.name,
                               .hint = option.hint,
                               .help = option.help,
                               .facts = facts,
                               .takes = takes_by(hint),
                               .values = option.values,
                               .list = hint == "LIST" || hint.ends_with(",…") || hint.ends_with(",..."),
                               .repeatable = option.repeatable});
  }
  return command;
}

}  // namespace allot::app
