// The command that does a run again.
#pragma once

#include <filesystem>
#include <string>

#include "app/files/command_words.h"
#include "wire/messages_fwd.h"

namespace allot::app {

// The `allot tune` that gives a run of this spec in `directory`: every option that a spec keeps, with its
// value in the run. Model, adapter and data lie where the run was started. A spec does not keep the command
// that grades; where the task needs one and `grader` is empty, COMMAND stands for it. Throws InvalidArgument
// for a name in the spec that this build does not know.
CommandWords run_again(const wire::RunSpec& spec, const std::filesystem::path& directory,
                       const std::string& grader = "");

}  // namespace allot::app
