// Manual pages in roff (man(7)), from the same descriptions as --help.
#pragma once

#include <span>
#include <string>

#include "app/cli/command_description.h"

namespace allot::app {

// allot(1): every command with its summary, one description each, or one a form. `version` is the release.
std::string manual_of_all(std::span<const CommandDescription> commands, const std::string& version);

// The page of one command, "allot-tune(1)"; `forms` are its descriptions, one unless it has forms. Throws
// std::logic_error without a known one.
std::string manual_of_command(std::span<const CommandDescription> forms, const std::string& version);

}  // namespace allot::app
