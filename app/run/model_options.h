// The options --model and --adapter, of every command that reads a model's files.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "app/cli/options.h"
#include "evaluation/task.h"
#include "model/tokenizer.h"

namespace allot::app {

// Both take a directory, or a name on the Hugging Face hub (model/hub_cache.h), of which the local cache has
// the files; the field is then the snapshot's directory. So a run goes on with the commit that it began with,
// whatever its branch comes to stand for. A name that the cache does not have stays in the field; parse()
// then throws NotFound with the command that downloads it, with --dry-run only where the files are needed.
// `help` says what the option is for.
void declare_model_option(OptionSet* set, std::filesystem::path* model, const char* help);
void declare_adapter_option(OptionSet* set, std::optional<std::filesystem::path>* adapter);
void declare_adapter_option(OptionSet* set, std::optional<std::filesystem::path>* adapter, const char* help);

// What these options make of a value: itself where it exists or can be no name on the hub. Throws NotFound as
// model::find_snapshot does.
std::filesystem::path model_directory(const std::filesystem::path& value);

// The directory that a run has recorded, perhaps on another machine: itself where it is here, else the same
// snapshot in this machine's cache, if it is one; anything else stays as it is. Throws NotFound as
// model::find_snapshot does, naming `option` as the other way to say where the files are.
std::filesystem::path recorded_directory(const std::filesystem::path& recorded, const char* option);

// Why the files of such a value are not here, in a sentence without its end; nothing where they are.
std::optional<std::string> missing_model(const std::filesystem::path& value);

// The values of the option --weights.
std::vector<std::string> weight_storage_names();

// The option --weights: how the engine keeps the weights of products (model/weight_storage.h).
void declare_weights_option(OptionSet* set, std::string* weights);

// Throws UsageError when weights that are made at random are to get an adapter.
void check_adapter(const std::optional<std::filesystem::path>& adapter,
                   const std::optional<int64_t>& random_weights);

// What --prompt-style auto takes for a model of this tokenizer.
evaluation::PromptStyle usual_prompt_style(const model::Tokenizer& tokenizer);

}  // namespace allot::app
