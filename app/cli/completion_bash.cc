#include <algorithm>
#include <map>
#include <set>

#include "app/cli/completion.h"

namespace allot::app {
namespace {

// What is the same for all commands. At the four marks stand: the commands, those with forms, what options
// take, and what bare words take; then each command's options.
constexpr std::string_view kBegin =
    R"(# bash completion for allot, made by `allot completion bash` from the declarations of its options.
_allot() {
  local IFS=$' \t\n'
  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} command=${COMP_WORDS[1]}
  local first=2 place word given before='' takes='' words='' files='' list=''
  COMPREPLY=()
  # Readline hands --name=value over as three words.
  if [[ $current == '=' ]]; then
    current=''
  elif [[ $previous == '=' ]]; then
    previous=${COMP_WORDS[COMP_CWORD - 2]}
  fi
)";

constexpr std::string_view kReply = R"(  if [[ $takes ]]; then
    # The last of several values; those before it stay.
    if [[ $list && $current == *,* ]]; then before=${current%,*},; fi
    COMPREPLY=($(compgen -P "$before" -W "$words" -- "${current#"$before"}"))
    [[ ! $list ]] || compopt -o nospace 2>/dev/null
    if [[ $files ]]; then
      IFS=$'\n'
      word=-f
      [[ $files != directory ]] || word=-d
      COMPREPLY+=($(compgen "$word" -- "$current"))
      compopt -o filenames 2>/dev/null
    else
      compopt +o default 2>/dev/null  # no file where none is meant
    fi
    return 0
  fi
)";

constexpr std::string_view kOptions = R"(  compopt +o default 2>/dev/null
  given=" ${COMP_WORDS[*]:1:COMP_CWORD-1} ${COMP_WORDS[*]:COMP_CWORD+1} "
  for word in $words; do
    if [[ $word == *'*' ]]; then
      word=${word%'*'}  # may be given several times
    elif [[ $given == *" $word "* ]]; then
      continue
    fi
    [[ $word != "$current"* ]] || COMPREPLY+=("$word")
  done
}
# Where the function has no answer for a file, for example after ~, readline's own stands in.
complete -o default -F _allot allot
)";

std::string joined(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) line += (line.empty() ? "" : " ") + word;
  return line;
}

// The assignments that say what an option takes.
std::string takes_of(const OptionDescription& option) {
  std::string text = "takes=1";
  if (!option.values.empty()) text += " words='" + joined(option.values) + "'";
  if (option.list) text += " list=1";
  if (option.takes == Takes::kFile) text += " files=file";
  if (option.takes == Takes::kDirectory) text += " files=directory";
  return text;
}

// A case for each kind of value, under the options that take it: `*" --model"` where every command means the
// same by the name, else also lines for the commands that do not, which come first.
std::string option_cases(std::span<const CommandDescription> commands) {
  std::map<std::string, std::map<std::string, std::vector<std::string>>>
      uses;  // option, what it takes, commands
  for (const CommandDescription& command : commands)
    for (const OptionDescription& option : command.options)
      if (option.takes != Takes::kNothing) uses[option.name][takes_of(option)].push_back(command.name);
  std::map<std::string, std::vector<std::string>> special;  // what is taken, patterns
  std::map<std::string, std::vector<std::string>> usual;
  for (const auto& [option, kinds] : uses) {
    const auto most =
        std::ranges::max_element(kinds, {}, [](const auto& kind) { return kind.second.size(); });
    usual[most->first].push_back("*' --" + option + "'");
    for (auto kind = kinds.begin(); kind != kinds.end(); ++kind) {
      if (kind == most) continue;
      for (const std::string& command : kind->second)
        special[kind->first].push_back("'" + command + " --" + option + "'");
    }
  }
  std::string text;
  for (const auto& cases : {special, usual}) {
    for (const auto& [taken, patterns] : cases) {
      std::string line;
      for (const std::string& pattern : patterns) line += (line.empty() ? "    " : " | ") + pattern;
      text += line + ") " + taken + " ;;\n";
    }
  }
  return text;
}

std::string bare_word_cases(std::span<const CommandDescription> commands) {
  std::string text;
  for (const CommandDescription& command : commands) {
    // The first bare word of a form is the form itself.
    const bool form = command.name.find(' ') != std::string::npos;
    for (size_t place = form ? 1 : 0; place < command.positionals.size(); ++place) {
      text += "      '" + command.name + " ";
      text += std::to_string(place - (form ? 1 : 0)) + "') " +
              takes_of(*command.find(command.positionals[place])) + " ;;\n";
    }
  }
  return text;
}

}  // namespace

std::string bash_completion(std::span<const CommandDescription> commands) {
  std::vector<std::string> names;
  std::vector<std::pair<std::string, std::vector<std::string>>> forms;
  for (const CommandDescription& command : commands) {
    if (names.empty() || names.back() != command.command()) names.push_back(command.command());
    if (command.name == command.command()) continue;
    if (forms.empty() || forms.back().first != command.command())
      forms.emplace_back(command.command(), std::vector<std::string>{});
    forms.back().second.push_back(command.name.substr(command.command().size() + 1));
  }
  std::string text(kBegin);
  text +=
      "  if ((COMP_CWORD == 1)); then\n    compopt +o default 2>/dev/null\n    COMPREPLY=($(compgen -W '" +
      joined(names) + " --help --version' -- \"$current\"))\n    return 0\n  fi\n";
  if (!forms.empty()) {
    text += "  case $command in\n";
    for (const auto& [command, words] : forms) {
      text +=
          "    " + command +
          ")\n      if ((COMP_CWORD == 2)); then\n        compopt +o default 2>/dev/null\n        COMPREPLY=($(compgen -W '" +
          joined(words) +
          "' -- \"$current\"))\n        return 0\n      fi\n      command+=\" ${COMP_WORDS[2]}\" first=3 ;;\n";
    }
    text += "  esac\n";
  }
  text += "  case \"$command $previous\" in\n" + option_cases(commands) + "  esac\n";
  text +=
      "  if [[ ! $takes && $current != -* ]]; then\n"
      "    place=$((COMP_CWORD - first))  # of the bare word, when there are none but bare words before it\n"
      "    for word in \"${COMP_WORDS[@]:first:place}\"; do\n"
      "      [[ $word != -* ]] || place=none\n"
      "    done\n"
      "    case \"$command $place\" in\n" +
      bare_word_cases(commands) + "    esac\n  fi\n";
  text += kReply;
  text += "  case $command in\n";
  for (const CommandDescription& command : commands) {
    if (!command.known()) continue;
    std::string options;
    for (const OptionDescription& option : command.options)
      options += (options.empty() ? "--" : " --") + option.name + (option.repeatable ? "*" : "");
    text += "    '" + command.name + "') words='" + options + "' ;;\n";
  }
  text += "  esac\n";
  text += kOptions;
  return text;
}

}  // namespace allot::app
