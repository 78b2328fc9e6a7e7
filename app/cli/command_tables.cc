#include "app/cli/command_tables.h"

#include <algorithm>
#include <filesystem>
#include <iostream>

#include "app/cli/command_output.h"
#include "app/cli/own_executable.h"
#include "base/error.h"

namespace allot::app {
namespace {

std::string answer_of(const std::filesystem::path& program) {
  return output_of({program.string(), std::string(kHelpAsJson)});
}

}  // namespace

std::vector<CommandDescription> all_commands() {
  const std::filesystem::path directory = own_directory();
  std::vector<CommandDescription> commands =
      read_json_lines(answer_of(directory / "allot"), (directory / "allot").string());
  for (const char* name : {"allot-model", "allot-bench"}) {
    if (!std::filesystem::exists(directory / name)) continue;
    std::string answer;
    try {
      answer = answer_of(directory / name);
    } catch (const Error& error) {
      std::cerr << "allot: " << error.what() << "; the options of its commands are left out" << std::endl;
      continue;
    }
    for (CommandDescription& found : read_json_lines(answer, (directory / name).string())) {
      if (!found.known()) continue;
      const auto same = std::ranges::find_if(commands, [&](const CommandDescription& known) {
        return known.command() == found.command() && !known.known();
      });
      const auto other = std::ranges::find(commands, found.command(), &CommandDescription::command);
      if (same != commands.end()) {
        found.summary = same->summary;
        *same = std::move(found);
      } else if (other != commands.end()) {  // another form, after those that are known
        found.summary = other->summary;
        const auto end = std::find_if(other, commands.end(), [&](const CommandDescription& known) {
          return known.command() != found.command();
        });
        commands.insert(end, std::move(found));
      }
    }
  }
  return commands;
}

}  // namespace allot::app
