// The command that does a run again.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "wire/messages_fwd.h"

namespace allot::app {

// The words of the `allot tune` that gives a run of this spec in `directory`: every option that a spec keeps,
// with its value in the run. Model, adapter and data lie where the run was started.
std::vector<std::string> words_of(const wire::RunSpec& spec, const std::filesystem::path& directory);

// The same as one line for a POSIX shell; words with other characters than letters, digits and _-./=:,+@% are
// quoted.
std::string command_of(const wire::RunSpec& spec, const std::filesystem::path& directory);

}  // namespace allot::app
