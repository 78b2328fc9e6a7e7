#include "app/run/model_options.h"

#include <cstdlib>
#include <string>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "model/hub_cache.h"
#include "model/weight_storage.h"

namespace allot::app {
namespace {

std::optional<std::string> environment(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

// As model_directory, but a name of which the cache has nothing stays as it is.
std::filesystem::path directory_or_name(const std::string& value) {
  try {
    return model_directory(value);
  } catch (const NotFound&) {
    return value;  // require_files says so, where the files are needed
  }
}

}  // namespace

std::filesystem::path model_directory(const std::filesystem::path& value) {
  return model::locate(value, environment);
}

std::filesystem::path recorded_directory(const std::filesystem::path& recorded, const char* option) {
  std::error_code error;
  if (std::filesystem::exists(recorded, error)) return recorded;
  const auto name = model::snapshot_name(recorded);
  if (!name) return recorded;
  try {
    return model::find_snapshot(model::hub_cache(environment), *name);
  } catch (const NotFound& not_found) {
    throw NotFound(recorded.string() + " is not here: " + not_found.what() + ", or say with " + option +
                   " where the files are");
  }
}

std::optional<std::string> missing_model(const std::filesystem::path& value) {
  try {
    if (std::filesystem::exists(model_directory(value))) return std::nullopt;
    return value.string() + " does not exist here";
  } catch (const NotFound& error) {
    return error.what();
  }
}

void declare_model_option(OptionSet* set, std::filesystem::path* model, const char* help) {
  set->custom({.name = "model",
               .hint = "PATH",
               .help = help,
               .set =
                   [=](const std::string& value) {
                     *model = directory_or_name(value);
                     return std::string();
                   },
               .get = [=] { return std::vector{model->string()}; },
               .require_files = [=] { (void)model_directory(*model); }});
}

void declare_adapter_option(OptionSet* set, std::optional<std::filesystem::path>* adapter, const char* help) {
  set->custom(
      {.name = "adapter",
       .hint = "PATH",
       .help = help,
       .set =
           [=](const std::string& value) {
             adapter->reset();
             if (!value.empty()) *adapter = directory_or_name(value);
             return std::string();
           },
       .get = [=] { return *adapter ? std::vector{(*adapter)->string()} : std::vector<std::string>{}; },
       .require_files =
           [=] {
             if (*adapter) (void)model_directory(**adapter);
           }});
}

void declare_adapter_option(OptionSet* set, std::optional<std::filesystem::path>* adapter) {
  declare_adapter_option(
      set, adapter,
      "LoRA adapter as PEFT saves it, merged into the model's weights: a directory, or a name as of --model");
}

std::vector<std::string> weight_storage_names() {
  std::vector<std::string> names;
  for (const model::WeightStorageName& one : model::kWeightStorages) names.emplace_back(one.name);
  return names;
}

void declare_weights_option(OptionSet* set, std::string* weights) {
  set->choice(
      "weights", weights, weight_storage_names(),
      "weights of products: of --dtype; fp8 those of the layers with 8 bits and a scale for each output channel, "
      "fp8-logits those of the logits, too (CUDA devices of compute capability 8.9 and newer)");
}

void check_adapter(const std::optional<std::filesystem::path>& adapter,
                   const std::optional<int64_t>& random_weights) {
  if (!adapter || !random_weights) return;
  throw UsageError("--adapter " + adapter->string() + " and --random-weights " +
                   std::to_string(*random_weights) +
                   " exclude each other: an adapter belongs to the weights it was trained on");
}

evaluation::PromptStyle usual_prompt_style(const model::Tokenizer& tokenizer) {
  return evaluation::prompt_style_for(tokenizer.chat_template(), tokenizer.special_token("eos_token"));
}

}  // namespace allot::app
