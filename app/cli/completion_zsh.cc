#include <algorithm>

#include "app/cli/completion.h"

namespace allot::app {
namespace {

// The beginning of a help text that says what the option is for, short enough for a line.
std::string brief(const std::string& help) {
  constexpr size_t kLongest = 90;
  std::string text = help.substr(0, std::min(help.find(';'), help.find(" (")));
  if (text.size() <= kLongest) return text;
  const size_t space = text.rfind(' ', kLongest);
  return text.substr(0, space == std::string::npos ? text.size() : space) + " …";
}

// Text for a specification of _arguments or _describe, between single quotes.
std::string specification_text(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '\'') {
      escaped += "'\\''";
      continue;
    }
    if (c == '\\' || c == '[' || c == ']' || c == ':') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

// ":hint:action" of an option or a bare word.
std::string value_of(const OptionDescription& option) {
  std::string words;
  for (const std::string& value : option.values) words += (words.empty() ? "" : " ") + value;
  const char* files = option.takes == Takes::kDirectory ? "_files -/" : "_files";
  std::string action = " ";  // a value of which nothing is known
  if (option.takes == Takes::kFile || option.takes == Takes::kDirectory) {
    action = words.empty() ? std::string(files) : "{compadd - " + words + "; " + files + "}";
  } else if (!words.empty()) {
    action = option.list ? "_sequence compadd - " + words : "(" + words + ")";
  }
  return ":" + specification_text(option.hint) + ":" + action;
}

std::string arguments_of(const CommandDescription& command) {
  const bool form = command.name.find(' ') != std::string::npos;
  std::string text;
  for (const OptionDescription& option : command.options) {
    text += std::string(" \\\n        '") + (option.repeatable ? "*" : "") + "--" + option.name;
    if (option.takes != Takes::kNothing) text += "=";
    text += "[" + specification_text(brief(option.help)) + "]";
    if (option.takes != Takes::kNothing) text += value_of(option);
    text += "'";
  }
  // The first bare word of a form is the form itself.
  for (size_t place = form ? 1 : 0; place < command.positionals.size(); ++place) {
    text += " \\\n        '" + std::to_string(place + (form ? 0 : 1));
    text += value_of(*command.find(command.positionals[place])) + "'";
  }
  return text;
}

}  // namespace

std::string zsh_completion(std::span<const CommandDescription> commands) {
  std::string text =
      "#compdef allot\n"
      "# zsh completion for allot, made by `allot completion zsh` from the declarations of its options.\n"
      "_allot() {\n"
      "  local command\n"
      "  local -a commands forms\n"
      "  if (( CURRENT == 2 )); then\n"
      "    commands=(\n";
  std::vector<std::pair<std::string, std::string>> forms;  // command, specifications
  std::string last;
  for (const CommandDescription& command : commands) {
    if (command.command() != last)
      text += "      '" + command.command() + ":" + specification_text(brief(command.summary)) + "'\n";
    last = command.command();
    if (command.name == last) continue;
    if (forms.empty() || forms.back().first != last) forms.emplace_back(last, "");
    forms.back().second +=
        " '" + command.name.substr(last.size() + 1) + ":" + specification_text(brief(command.title)) + "'";
  }
  text +=
      "    )\n"
      "    _describe -t commands 'command' commands\n"
      "    return\n"
      "  fi\n"
      "  command=$words[2]\n"
      "  shift words\n"
      "  (( CURRENT-- ))\n";
  for (const auto& [command, specifications] : forms) {
    text += "  if [[ $command == " + command +
            " ]]; then\n"
            "    forms=(" +
            specifications.substr(1) +
            ")\n"
            "    if (( CURRENT == 2 )); then\n"
            "      _describe -t forms 'what' forms\n"
            "      return\n"
            "    fi\n"
            "    command+=\" $words[2]\"\n"
            "    shift words\n"
            "    (( CURRENT-- ))\n"
            "  fi\n";
  }
  text += "  case $command in\n";
  for (const CommandDescription& command : commands) {
    if (!command.known()) continue;
    text += "    '" + command.name + "')\n      _arguments" + arguments_of(command) + " ;;\n";
  }
  // As a file of fpath it is called at once; sourced, it says what it is for.
  return text +
         "  esac\n"
         "}\n"
         "if [[ $funcstack[1] == _allot ]]; then\n"
         "  _allot \"$@\"\n"
         "else\n"
         "  compdef _allot allot\n"
         "fi\n";
}

}  // namespace allot::app
