// The descriptions of all commands, from every executable of this build.
#pragma once

#include <vector>

#include "app/cli/command_description.h"

namespace allot::app {

// In the order of `allot --help`. Asks allot, allot-model and allot-bench, as far as they lie beside this
// program, with --help=json. Commands of one that is not there, or that does not run (it says why on standard
// error, as where LibTorch is missing, and a line after it says what is left out), have no options:
// CommandDescription::known. Throws Error when allot itself cannot be run, CorruptFile when an answer is
// none.
std::vector<CommandDescription> all_commands();

}  // namespace allot::app
