// The options that say how replies are generated, for the commands that learn schedules and for those that
// score them. Values that are not given follow from the task and its prompt style, so that all commands
// measure under the same conditions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "app/cli/options.h"
#include "evaluation/task.h"

namespace allot::app {

// As given; empty fields take the task's default.
struct GenerationOptions {
  std::string dtype = "bfloat16";
  std::string weights = "dtype";
  std::string keys = "16-bit";
  std::optional<double> temperature;
  std::optional<double> top_p;
  std::optional<double> repetition_penalty;
  std::optional<int32_t> max_new_tokens;
};

// Declares the options above. --help shows their defaults under each prompt style of `task`.
void declare_generation_options(OptionSet* set, GenerationOptions* options, const std::string& task);

// --keys, of a KV cache, for every command that makes an engine.
void declare_keys_option(OptionSet* set, std::string* keys);

// The given values, and the defaults of `task` for the rest. The stop rule is the task's.
evaluation::Generation resolve(const GenerationOptions& options, const evaluation::Task& task);

// Sets every option to its resolved value, for --dry-run.
GenerationOptions options_of(const evaluation::Generation& generation);

}  // namespace allot::app
