#include "app/cli/command_description.h"

#include <algorithm>
#include <sstream>

#include "base/error.h"
#include "base/json.h"

namespace allot::app {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kHelpColumn = 30;
constexpr size_t kHelpWidth = 110;

constexpr std::string_view kTakesNames[] = {"nothing", "value", "file", "directory"};

void append_wrapped(std::ostringstream& out, const std::string& left, const std::string& text) {
  out << "  " << left;
  size_t column = left.size() + 2;
  if (column + 2 > kHelpColumn) {
    out << '\n';
    column = 0;
  }
  out << std::string(kHelpColumn - column, ' ');
  column = kHelpColumn;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (column + word.size() + 1 > kHelpWidth) {
      out << '\n' << std::string(kHelpColumn, ' ');
      column = kHelpColumn;
    }
    out << (column == kHelpColumn ? "" : " ") << word;
    column += word.size() + 1;
  }
  out << '\n';
}

Json option_json(const OptionDescription& option) {
  return {{"name", option.name},
          {"hint", option.hint},
          {"help", option.help},
          {"facts", option.facts},
          {"takes", kTakesNames[static_cast<size_t>(option.takes)]},
          {"values", option.values},
          {"list", option.list},
          {"repeatable", option.repeatable}};
}

OptionDescription read_option(const Json& json) {
  const auto takes = std::ranges::find(kTakesNames, json.at("takes").get<std::string>());
  if (takes == std::end(kTakesNames)) throw CorruptFile("unknown \"takes\" " + json.at("takes").dump());
  return {.name = json.at("name"),
          .hint = json.at("hint"),
          .help = json.at("help"),
          .facts = json.at("facts"),
          .takes = static_cast<Takes>(takes - std::begin(kTakesNames)),
          .values = json.at("values"),
          .list = json.at("list"),
          .repeatable = json.at("repeatable")};
}

}  // namespace

const std::string_view kPurpose =
    "allot learns how many attention samples each layer of a language model should get.";
const std::string_view kHelpAsJson = "--help=json";

std::string OptionDescription::text() const {
  return facts.empty() ? help : help + " (" + facts + ")";
}

const OptionDescription* CommandDescription::find(std::string_view option) const {
  const auto found = std::ranges::find(options, option, &OptionDescription::name);
  return found == options.end() ? nullptr : &*found;
}

std::string usage_of(const CommandDescription& command) {
  std::string usage;
  for (const std::string& name : command.positionals) usage += "[" + command.find(name)->hint + "] ";
  return usage + "[options]";
}

std::string help_text(const CommandDescription& command) {
  std::ostringstream out;
  out << "allot " << command.name << ": " << command.title << "\n\nUsage: allot " << command.name << " "
      << usage_of(command) << "\nExample: " << command.example << "\n\n";
  for (const OptionDescription& option : command.options)
    append_wrapped(out, "--" + option.name + (option.hint.empty() ? "" : " " + option.hint), option.text());
  return out.str();
}

std::string to_json_line(const CommandDescription& command) {
  Json options = Json::array();
  for (const OptionDescription& option : command.options) options.push_back(option_json(option));
  return Json{{"command", command.name},    {"summary", command.summary},         {"title", command.title},
              {"example", command.example}, {"positionals", command.positionals}, {"options", options}}
             .dump() +
         "\n";
}

std::vector<CommandDescription> read_json_lines(const std::string& lines, const std::string& source) {
  std::vector<CommandDescription> commands;
  std::istringstream in(lines);
  for (std::string line; std::getline(in, line);) {
    try {
      const Json json = Json::parse(line);
      CommandDescription command = {.name = json.at("command"),
                                    .summary = json.at("summary"),
                                    .title = json.at("title"),
                                    .example = json.at("example"),
                                    .positionals = json.at("positionals"),
                                    .options = {}};
      for (const Json& option : json.at("options")) command.options.push_back(read_option(option));
      for (const std::string& name : command.positionals)
        if (command.find(name) == nullptr) throw CorruptFile("no option is called " + name);
      commands.push_back(std::move(command));
    } catch (const std::exception& error) {
      throw CorruptFile(source + ": \"" + line.substr(0, 80) + "\" does not describe a command (" +
                        error.what() + "); are its executables of one build?");
    }
  }
  return commands;
}

}  // namespace allot::app
