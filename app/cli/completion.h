// Completion of command lines in shells, from the same descriptions as --help. The scripts hold all that they
// need: a key press starts no program.
#pragma once

#include <span>
#include <string>

#include "app/cli/command_description.h"

namespace allot::app {

// A script to source, or a file of bash-completion. Completes commands, forms, options that were not given
// yet, values of options with known ones (after a comma again where there may be several), files and
// directories. Needs bash 4 or newer, but no package.
std::string bash_completion(std::span<const CommandDescription> commands);

// The file _allot of a directory in zsh's fpath. Completes the same, and shows the help of each.
std::string zsh_completion(std::span<const CommandDescription> commands);

}  // namespace allot::app
