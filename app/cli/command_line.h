// Runs the sub-command that a command line names. Shared by allot and allot-model.
#pragma once

#include <span>
#include <string>

#include "app/cli/command.h"

namespace allot::app {

// The table of commands with one line each, as `allot --help` prints it.
std::string command_list(std::span<const Command> commands);

// Replaces this process by the executable beside it that has the command. Does not return; throws Unsupported
// when that executable was not built.
[[noreturn]] void hand_over(std::span<const std::string> arguments);

// Runs arguments[0] with the words after it. Handles --help, --help=json (a line of JSON for each command,
// with its options where its function is here: command_description.h), --version, an unknown command (named
// with the nearest known one) and every exception: one line on stderr, exit code of the Error (1, 2 for
// UsageError, 3 for Mismatch), 1 for anything else. For a command without a function, allot-model (for `bench
// attention` allot-bench) replaces this process.
int run_command_line(std::span<const Command> commands, std::span<const std::string> arguments);

}  // namespace allot::app
