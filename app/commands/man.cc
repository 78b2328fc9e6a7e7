// allot man: prints manual pages, or writes all of them into a folder.
#include <algorithm>
#include <filesystem>
#include <iostream>

#include "app/cli/command.h"
#include "app/cli/command_tables.h"
#include "app/cli/manual_page.h"
#include "app/cli/nearest_name.h"
#include "app/cli/options.h"
#include "app/cli/version.h"
#include "base/error.h"
#include "base/file.h"

namespace allot::app {
namespace {

// The command's descriptions; one without known options makes no page.
std::span<const CommandDescription> forms_of(const std::vector<CommandDescription>& commands,
                                             const std::string& name) {
  const auto begin = std::ranges::find(commands, name, &CommandDescription::command);
  const auto end = std::find_if(begin, commands.end(),
                                [&](const CommandDescription& command) { return command.command() != name; });
  return {begin, end};
}

// Names of the commands that have a page.
std::vector<std::string> pages_of(const std::vector<CommandDescription>& commands) {
  std::vector<std::string> names;
  for (const CommandDescription& command : commands)
    if (command.known() && (names.empty() || names.back() != command.command()))
      names.push_back(command.command());
  return names;
}

void write_pages(const std::vector<CommandDescription>& commands, const std::filesystem::path& folder) {
  const std::string release(version());
  std::filesystem::create_directories(folder);
  write_file_atomically(folder / "allot.1", manual_of_all(commands, release));
  for (const std::string& name : pages_of(commands))
    write_file_atomically(folder / ("allot-" + name + ".1"),
                          manual_of_command(forms_of(commands, name), release));
}

std::string page_of(const std::vector<CommandDescription>& commands, const std::string& name) {
  if (name.empty()) return manual_of_all(commands, std::string(version()));
  const std::vector<std::string> pages = pages_of(commands);
  if (std::ranges::find(pages, name) != pages.end())
    return manual_of_command(forms_of(commands, name), std::string(version()));
  std::string fault = "there is no page on '" + name + "'";
  if (!forms_of(commands, name).empty()) {
    fault += ", since the executable with that command was not built";
  } else if (const auto nearest = nearest_name(name, pages)) {
    fault += "; did you mean " + *nearest + "?";
  } else {
    fault += "; allot --help lists the commands";
  }
  throw UsageError(fault);
}

}  // namespace

int run_man(std::span<const std::string> arguments) {
  std::string name;
  std::filesystem::path out;
  OptionSet set("man", "print a manual page, or write all of them into a folder",
                "allot man tune | man -l -");
  set.positional("command", &name, "COMMAND", "whose page; that of allot itself without it");
  set.path("out", &out, "write the pages of allot and of all its commands into this folder, in roff");
  if (set.parse(arguments) == OptionSet::Parsed::kDone) return 0;
  if (!out.empty() && !name.empty())
    throw UsageError("--out " + out.string() + " gets all pages; leave '" + name + "' out");
  const std::vector<CommandDescription> commands = all_commands();
  if (out.empty()) {
    std::cout << page_of(commands, name);
  } else {
    write_pages(commands, out);
  }
  return 0;
}

}  // namespace allot::app
