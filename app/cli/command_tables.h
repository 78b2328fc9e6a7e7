// The descriptions of all commands, from every executable of this build.
#pragma once

#include <vector>

#include "app/cli/command_description.h"

namespace allot::app {

// In the order of `allot --help`. Asks allot, allot-model and allot-bench, as far as they lie beside this
// program, with --help=json; commands of one that does not have no options (CommandDescription::known).
// Throws Error when one of them cannot be run, CorruptFile when its answer is none.
std::vector<CommandDescription> all_commands();

}  // namespace allot::app
