// A run that goes on in its directory: the directory says what the run is, and options of a command line or a
// config file may only agree with it, or change what an operator may change while it runs.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "app/cli/options.h"
#include "app/run/run_spec_builder.h"
#include "wire/messages_fwd.h"

namespace allot::app {

// Whether the directory holds a run.
bool holds_run(const std::filesystem::path& run_directory);

// The options that define the run of `spec` anew, with what depends on the model and the data as it was
// resolved.
RunOptions options_of_run(const wire::RunSpec& spec, const std::filesystem::path& run_directory);

// What the given options ask to change of what the run is at now.
struct Changes {
  std::vector<wire::Control> controls;
  std::vector<std::string> words;  // the same as words of a command line
};

// Reads the run in `given.run` into `spec`, as it is stored. Every option of the run that `set` was given
// (declare_run_options, with `given` for its fields) is compared with it: models, adapters and data by their
// content, so that they may have moved. Throws Mismatch that names each option that differs, as it was given.
// --episodes, --bounds, --heldout-questions, --lease-seconds and --max-attempts may differ, which is a
// change; a value that the run began with and that an operator has changed since is none, which the log says.
Changes resume_run(const OptionSet& set, const RunOptions& given, wire::RunSpec* spec);

}  // namespace allot::app
